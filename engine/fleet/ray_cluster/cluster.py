"""A Ray cluster that engines run on: joined by its address, or started on this machine."""

import logging
import os
import secrets
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.api import wire
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.fleet.ray_cluster.host import EngineHost
from engine.host.frames import FrameSocket
from engine.host.joining import Door

LOCAL = "local"  # the address of a cluster that starts on this machine, and ends with this process
PLACED_WITHIN = 120.0  # seconds for Ray to find a machine, and for the process to connect
_ANSWERS_WITHIN = 10.0  # seconds for an actor
_ATTEMPTS = 3  # to start a cluster on this machine
_OBJECTS = 80 * 2**20  # bytes, almost Ray's least: engines store no objects there


class RayCluster:
    """Starts engines as actors. `close` ends those that are left, and a local cluster."""

    def __init__(self, address: str, replicas: int) -> None:
        self.ray = _joined(address, replicas)
        self._local = address == LOCAL
        self.host = "127.0.0.1" if self._local else self.ray.util.get_node_ip_address()
        self.session = self.ray.get_runtime_context().get_session_name()

    def shares(self, config: EngineConfig, replicas: int) -> list[EngineConfig]:
        """The configuration of each replica. Ray chooses its GPUs, of which it sees no others."""
        kind, _, index = config.device.partition(":")
        if index:
            raise BadInput(f"--device {config.device} cannot be combined with --ray, which chooses the GPUs")
        there = self.ray.cluster_resources()
        gpus, cores = int(there.get("GPU", 0)), int(there.get("CPU", 1))
        if kind == "cpu" or (kind == "auto" and not gpus):
            each = max(1, cores // (replicas * config.ranks))
            return [replace(config, device="cpu", threads=config.threads or each)] * replicas
        if (needed := replicas * config.ranks) > gpus:
            has = f"the cluster has {gpus}"
            raise BadInput(f"{replicas} replicas need {needed} GPUs, and {has}; use fewer, or --device cpu")
        return [replace(config, device="cuda:0")] * replicas

    def launcher(self, config: EngineConfig) -> "ReplicaLauncher":
        """How a replica with this configuration is started."""
        gpus = config.ranks if config.device.startswith("cuda") else 0
        cores = 1 if gpus else (config.threads or 1) * config.ranks
        return ReplicaLauncher(self.ray, self.host, self.session, cores, gpus)

    def nodes(self) -> list[dict[str, Any]]:
        """The machines, as Ray lists them."""
        found: list[dict[str, Any]] = self.ray.nodes()
        return found

    def close(self) -> None:
        self.ray.shutdown()


class ReplicaLauncher:
    """Starts an engine's process on a machine with free processors and GPUs."""

    def __init__(self, ray: Any, host: str, session: str, cores: int, gpus: int) -> None:
        self._ray, self._host, self._session = ray, host, session
        self.cores, self.gpus = cores, gpus
        self.actor = ray.remote(num_cpus=cores, num_gpus=gpus, max_restarts=0)(EngineHost)
        self.needs = f"{cores} processors" + (f" and {gpus} GPUs" if gpus else "")

    def __call__(self, log: Path) -> tuple["RayChild", FrameSocket]:
        return self.start(self.actor.remote(), log)

    def start(self, actor: Any, log: Path) -> tuple["RayChild", FrameSocket]:
        """Have this actor start it."""
        door = Door(self._host)
        begun = actor.begin.remote(door.address, door.secret, wire.VERSION, self._session, log.name)

        def look() -> None:
            """Raise the actor's error, if it has one."""
            if self._ray.wait([begun], timeout=0)[0]:
                self._ray.get(begun)

        try:
            connection = door.accept(PLACED_WITHIN, look)
            pid, place = self._ray.get(begun, timeout=_ANSWERS_WITHIN)
        except self._ray.exceptions.RayError as error:
            self._ray.kill(actor)
            raise EngineError(f"Ray could not start the engine: {cause(error)}") from error
        except EngineError as error:
            self._ray.kill(actor)
            raise EngineError(f"{error}: Ray has found no machine with {self.needs}") from None
        finally:
            door.close()
        return RayChild(self._ray, actor, pid, place), FrameSocket(connection)


class RayChild:
    """The process of an engine on a machine of the cluster, and its actor."""

    def __init__(self, ray: Any, actor: Any, pid: int, log: str) -> None:
        self._ray, self._actor, self.pid, self.log = ray, actor, pid, log

    def kill(self) -> None:
        self._ray.kill(self._actor)

    def ended(self, within: float) -> str:
        try:
            asked = self._actor.ended.remote(within)
            return str(self._ray.get(asked, timeout=within + _ANSWERS_WITHIN))
        except self._ray.exceptions.GetTimeoutError:
            return "does not answer, nor does its machine"
        except self._ray.exceptions.RayError as error:
            return f"ended with its actor: {cause(error)}"
        finally:
            self._ray.kill(self._actor)  # another replica may need its place


def reach(address: str) -> None:
    """Refuse an address without a cluster at once; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address:
        where = "the address of the cluster's head, such as 10.0.0.1:6379, on one of its machines"
        raise BadInput(f"--ray {address}: give {where}")
    if host and port.isdecimal():  # else a name that Ray knows, such as auto
        try:
            socket.create_connection((host, int(port)), _ANSWERS_WITHIN).close()
        except OSError as error:
            raise EngineError(f"cannot join the Ray cluster at {address}: {error}") from None


def cause(error: BaseException) -> str:
    """The first line, of the error that an actor's method has raised if it has."""
    lines = str(getattr(error, "cause", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _joined(address: str, replicas: int) -> Any:
    """Connect this process to a cluster."""
    settings: dict[str, Any] = {"address": address}
    if address == LOCAL:
        # Only this process and its actors may use the cluster: others could run code as this user.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        settings |= {"num_cpus": max(len(os.sched_getaffinity(0)), replicas), "include_dashboard": False}
        settings |= {"object_store_memory": _OBJECTS}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported unless the user wants it
    try:
        import ray  # only after these variables are set
    except ImportError:
        raise BadInput("--ray requires Ray: pip install 'minichat[ray]'") from None
    if address != LOCAL:
        reach(address)
    logging.getLogger("ray").setLevel(logging.ERROR)
    # A Ray that starts in the same moment may take the port that this one has found free.
    attempts = _ATTEMPTS if address == LOCAL else 1
    for left in reversed(range(attempts)):
        try:
            ray.init(log_to_driver=False, configure_logging=False, **settings)
        except Exception as error:
            if not left or ray.is_initialized():  # the program's own Ray is left alone
                what = "start Ray" if address == LOCAL else f"join the Ray cluster at {address}"
                raise EngineError(f"cannot {what}: {cause(error)}") from error
            ray.shutdown()  # what has started
        else:
            break
    return ray
