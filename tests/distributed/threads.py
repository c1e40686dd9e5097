"""Ranks as threads of this process: their own code, rings and collectives, without seconds of imports."""

import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine.api.errors import EngineError
from engine.distributed.crews import started
from engine.distributed.crews.wires import Wires
from engine.distributed.link import RankLink
from engine.distributed.member import Member
from engine.distributed.ring import RingEnds
from engine.distributed.setup import connect
from engine.distributed.team import Team
from engine.serving.engine import Engine
from tests.runner.small import engine_on


class RankThread:
    """Has the methods of a process that a team calls. It ends when its connections close."""

    pid = os.getpid()

    def __init__(self, given: dict[str, Any], pulse: socket.socket, fds: list[int]) -> None:
        self._given, self._pulse, self._fds = given, pulse, fds
        self._thread = threading.Thread(target=self._run, name=f"rank {given['rank']}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            connect(self._given).run()
        except (EOFError, EngineError):
            pass  # the engine has ended, or the error was reported
        finally:
            self._pulse.close()
            for fd in self._fds:
                os.close(fd)

    def wait(self, timeout: float | None = 10.0) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        return 0

    def kill(self) -> None:
        """A thread cannot be killed. Closing its connections ends it."""


def spawn(
    command: tuple[str, ...],
    rank: int,
    steps: int,
    meeting: int,
    ring: RingEnds,
    wires: Wires,
    board: int | None,
    *gpus: Any,
) -> Member:
    link, their_link = socket.socketpair()
    pulse, their_pulse = socket.socketpair()
    dup = {fd: os.dup(fd) for fd in (steps, *ring, *wires.fds())} | {-1: -1}
    theirs = (
        dup[wires.memory],
        [dup[fd] for fd in wires.wake],
        [dup[fd] for fd in wires.woken],
        [dup[fd] for fd in wires.alarm],
    )
    given = {
        "rank": rank,
        "link": their_link.detach(),
        "ring": [dup[fd] for fd in (steps, *ring)],
        "wires": theirs,
        "board": None if board is None else os.dup(board),
    }
    thread: Any = RankThread(given, their_pulse, [fd for fd in dup.values() if fd >= 0])
    return Member(rank, thread, RankLink(link), pulse, tempfile.TemporaryFile())


@contextmanager
def ranked(folder: Path, tp: int = 2, **config: Any) -> Iterator[Engine]:
    """An engine whose other ranks are threads."""
    with patch.object(started, "spawn", spawn), patch.object(Team, "silence", 1e9):
        engine = engine_on(folder, tp=tp, **config)
        try:
            yield engine
        finally:
            engine.close()
