"""What runs on a machine of the cluster, in an actor of Ray: it starts the process of an engine there."""

import os
import socket
import subprocess
from pathlib import Path
from tempfile import gettempdir

from engine.api import wire
from engine.api.errors import EngineError
from engine.api.places import MeetingPlace, digest_of
from engine.distributed.crews.joined import start_rank
from engine.host.joining import join
from engine.host.launching import describe_exit, open_log, spawn

_JOINS = 600.0  # seconds until the engine listens
_LOOPBACK = "127.0.0.1"


def check_version(version: int) -> None:
    """Raise if the server's version is another one than this machine's."""
    if version != wire.VERSION:
        raise EngineError(
            f"minichat on {os.uname().nodename} uses version {wire.VERSION} of the wire format, not {version}"
        )


def log_file(session: str, name: str) -> Path:
    """Beside Ray's own logs."""
    file = Path(gettempdir(), "ray", session, "logs", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


class EngineHost:
    """One engine's process. It ends with the actor, even if that is killed."""

    def __init__(self) -> None:
        self._passed: list[int] = []  # descriptors that the process gets

    def meet(self, server: str, secret: str) -> str:
        """Where the engine's other ranks connect. It reads the secret from a pipe, so no file is left."""
        read, write = os.pipe()
        os.write(write, secret.encode())
        os.close(write)
        self._passed.append(read)
        host = server if server == _LOOPBACK else _address()
        with socket.create_server((host, 0)) as free:
            return f"{host}:{free.getsockname()[1]}:/dev/fd/{read}"

    def begin(
        self, address: tuple[str, int], secret: bytes, version: int, session: str, log: str
    ) -> tuple[int, str]:
        """Start it, connected to the server. Return its number, and where its log is."""
        check_version(version)
        file = log_file(session, log)
        lifeline, self._held = os.pipe()
        with join(address, secret) as connection, open_log(file) as out:
            self._process = spawn(connection.fileno(), out, lifeline, passed=self._passed)
        os.close(lifeline)
        return self._process.pid, f"{file} on {os.uname().nodename}"

    def ended(self, within: float) -> str:
        """Wait for its end, or kill it. Return how it ended."""
        try:
            return describe_exit(self._process.wait(within))
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
            return describe_exit(None)

    def kill(self) -> None:
        self._process.kill()


class RankHost:
    """One rank of an engine on another machine. It ends with the actor, too."""

    def check(self, version: int) -> None:
        check_version(version)

    def begin(self, meet: str, secret: str, device: str, session: str, log: str) -> None:
        """Connect to the engine, and start the rank's process."""
        place = MeetingPlace.parse(meet)
        with open_log(log_file(session, log)) as out:
            self._process, self._held = start_rank(place, digest_of(secret.encode()), device, _JOINS, out)


def _address() -> str:
    import ray  # only on a machine of the cluster

    return str(ray.util.get_node_ip_address())
