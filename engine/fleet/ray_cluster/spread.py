"""A replica whose ranks are on several machines of the cluster, since none has room for all of them."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.api import wire
from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.fleet.ray_cluster.cluster import PLACED_WITHIN, RayChild, RayCluster, ReplicaLauncher, cause
from engine.fleet.ray_cluster.host import RankHost
from engine.host.frames import FrameSocket
from engine.host.launching import Launch


def fits_one(nodes: Sequence[Mapping[str, Any]], kind: str, needed: int) -> bool:
    """Whether one of the machines has so many processors (CPU) or GPUs (GPU). `nodes`: as Ray lists them."""
    return any(each["Alive"] and each["Resources"].get(kind, 0) >= needed for each in nodes)


def place(cluster: RayCluster, config: EngineConfig) -> tuple[EngineConfig, Launch]:
    """How a replica with this configuration is started, and what is added to its configuration."""
    launcher = cluster.launcher(config)
    needed = ("GPU", launcher.gpus) if launcher.gpus else ("CPU", launcher.cores)
    if config.tp == 1 or config.pp > 1 or fits_one(cluster.nodes(), *needed):
        return config, launcher
    return spread(cluster, config)


def spread(cluster: RayCluster, config: EngineConfig) -> tuple[EngineConfig, Launch]:
    """Place each rank for itself. They meet at the machine of the engine's process, the first of them."""
    launcher = cluster.launcher(replace(config, tp=1))
    launch = SpreadLauncher(cluster, launcher, config.tp - 1, config.device)
    return replace(config, meet=launch.meet), launch


class SpreadLauncher:
    def __init__(self, cluster: RayCluster, launcher: ReplicaLauncher, others: int, device: str) -> None:
        self._ray, self._launcher = cluster.ray, launcher
        self._session, self._device, self._secret = cluster.session, device, secrets.token_hex(32)
        needs = {"num_cpus": launcher.cores, "num_gpus": launcher.gpus, "max_restarts": 0}
        self._engine = launcher.actor.remote()
        self._others = [self._ray.remote(**needs)(RankHost).remote() for _ in range(others)]
        try:
            asked = [each.check.remote(wire.VERSION) for each in self._others]
            self.meet, *_ = self._ray.get(
                [self._engine.meet.remote(cluster.host, self._secret), *asked], timeout=PLACED_WITHIN
            )
        except self._ray.exceptions.GetTimeoutError:
            self._end()
            raise EngineError(
                f"Ray has found no {others + 1} places with {launcher.needs} within {PLACED_WITHIN:g} s"
            ) from None
        except self._ray.exceptions.RayError as error:
            self._end()
            raise EngineError(f"Ray could not place the ranks: {cause(error)}") from error

    def __call__(self, log: Path) -> tuple["SpreadChild", FrameSocket]:
        try:
            child, frames = self._launcher.start(self._engine, log)
        except BaseException:
            self._end()
            raise
        for number, each in enumerate(self._others, 1):
            file = f"{log.stem}-rank{number}{log.suffix}"
            each.begin.remote(self.meet, self._secret, self._device, self._session, file)
        return SpreadChild(child, self._end), frames

    def _end(self) -> None:
        for each in (self._engine, *self._others):
            self._ray.kill(each)


class SpreadChild:
    """The engine's process, with which its other ranks' actors end."""

    def __init__(self, engine: RayChild, end: Any) -> None:
        self._engine, self._end, self.pid, self.log = engine, end, engine.pid, engine.log

    def kill(self) -> None:
        self._end()

    def ended(self, within: float) -> str:
        try:
            return self._engine.ended(within)
        finally:
            self._end()
