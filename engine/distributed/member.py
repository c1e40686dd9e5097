"""A rank in another process: how it is started, and what the engine holds of it."""

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol

from engine.distributed.crews.wires import Wires
from engine.distributed.link import RankLink
from engine.distributed.ring import RingEnds
from engine.host.launching import child_environment

ENDS = 2.0  # seconds a process has to exit after its connections close
_TAIL = 2000  # bytes of its log that are copied to this process's log


class RankProcess(Protocol):
    """The process of a rank, on this machine or on another one."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


@dataclass(slots=True)
class Member:
    """A rank in another process."""

    rank: int
    process: RankProcess
    link: RankLink
    pulse: socket.socket
    log: IO[bytes] | None  # None: elsewhere
    host: str = ""  # the address of its machine, if that is another one
    beating: bool = False  # whether its heart is watched: it has started
    silent: float = 0.0  # seconds since its last heartbeat

    def close(self) -> None:
        """Close the connections."""
        self.link.close()
        self.pulse.close()
        if self.log is not None:
            self.log.close()

    def end(self) -> int | None:
        """Return the exit code of a process whose connections are closed; None if it had to be killed."""
        try:
            return self.process.wait(ENDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def spawn(
    command: tuple[str, ...],
    rank: int,
    steps: int,
    meeting: int,
    ring: RingEnds,
    wires: Wires,
    board: int,
    visible: Sequence[str],
    device: str,
) -> Member:
    """Start a rank's process. `board`: its end of the connection to one. `visible`: the GPUs that it sees, if
    any. `device`: of those, its own.
    """
    link, their_link = socket.socketpair()
    pulse, their_pulse = socket.socketpair()
    given = {
        "rank": rank,
        "link": their_link.fileno(),
        "pulse": their_pulse.fileno(),
        "ring": [steps, *ring],
        "wires": wires,
        "board": board,
        "device": device,
    }
    inherited = [their_link.fileno(), their_pulse.fileno(), steps, meeting, *ring, *wires.fds(), board]
    output = tempfile.TemporaryFile()  # noqa: SIM115  # the member closes it
    with their_link, their_pulse:
        process = subprocess.Popen(
            [*command, json.dumps(given)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=inherited,
            env=child_environment() | ({"CUDA_VISIBLE_DEVICES": ",".join(visible)} if visible else {}),
            start_new_session=True,  # it must not receive Ctrl+C or the terminal's hangup
        )
    return Member(rank, process, RankLink(link), pulse, output)


def beats(pulse: socket.socket) -> bool:
    """Read a heartbeat. False at the end."""
    with suppress(ConnectionError):
        return bool(pulse.recv(4096))
    return False


def tail(file: IO[bytes]) -> str:
    """Return the end of a log."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    return file.read().decode(errors="replace").strip()
