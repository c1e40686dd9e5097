"""What runs on a machine of the cluster, in an actor of Ray: it starts the process of an engine there."""

import os
import subprocess
from pathlib import Path
from tempfile import gettempdir

from engine.api import wire
from engine.api.errors import EngineError
from engine.host.joining import join
from engine.host.launching import describe_exit, open_log, spawn


class EngineHost:
    """One engine's process. It ends with the actor, even if that is killed."""

    def begin(
        self, address: tuple[str, int], secret: bytes, version: int, session: str, log: str
    ) -> tuple[int, str]:
        """Start it, connected to the server. Return its number, and where its log is."""
        if version != wire.VERSION:
            raise EngineError(
                f"minichat on {os.uname().nodename} uses version {wire.VERSION} of the wire format, "
                f"not {version}"
            )
        file = Path(gettempdir(), "ray", session, "logs", log)  # beside Ray's own
        file.parent.mkdir(parents=True, exist_ok=True)
        lifeline, self._held = os.pipe()
        with join(address, secret) as connection, open_log(file) as out:
            self._process = spawn(connection.fileno(), out, lifeline)
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
