"""Runs a program on a pseudo terminal: types keys, and records when each chunk of output arrived."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 90.0  # seconds, on a busy machine
_LEAVE_WITHIN = 5.0  # seconds
_QUIET = 0.5  # seconds


class Terminal:
    """A true-color pseudo terminal, read by a thread as fast as the program writes."""

    def __init__(self, words: Sequence[str], size: tuple[int, int], environment: Mapping[str, str]) -> None:
        self.chunks: list[tuple[float, bytes]] = []  # arrival time, and bytes
        self.sent = 0
        self._child, self._master = pty.fork()
        if not self._child:
            os.chdir(ROOT)
            os.execve(sys.executable, [sys.executable, *words], dict(environment))
        columns, lines = size
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.kill(self._child, signal.SIGWINCH)
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self._child, signal.SIGTERM)
        end = time.monotonic() + _LEAVE_WITHIN
        while os.waitpid(self._child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(self._child, signal.SIGKILL)
            time.sleep(0.02)
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return  # the program has exited
            if not data:
                return
            self.chunks.append((time.monotonic(), data))
            self.sent += len(data)

    def type(self, keys: str) -> None:
        data = keys.encode()
        while data:
            select.select([], [self._master], [])
            data = data[os.write(self._master, data) :]

    def wait(self, holds: Callable[[], object], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not (held := holds()) and time.monotonic() < end:
            time.sleep(0.02)
        return bool(held)

    def until(self, holds: Callable[[], object], what: str) -> None:
        if not self.wait(holds, _PATIENCE):
            last = b"".join(data for _, data in self.chunks[-20:])[-500:]
            raise TimeoutError(f"{what}: not seen in {_PATIENCE:.0f} s; last output: {last!r}")

    def quiet(self) -> bool:
        """Return whether no output has arrived for a while."""
        return time.monotonic() - self.chunks[-1][0] > _QUIET

    def shows(self, text: str, since: int = 0) -> float | None:
        """When the text arrived, searched from chunk `since` on; chunks may split it."""
        needle, before = text.encode(), b""
        for at, data in self.chunks[since:]:
            if needle in before + data:
                return at
            before = (before + data)[-len(needle) :]
        return None

    @property
    def cpu(self) -> float:
        """Seconds of processor time of the program: all of its threads and its finished children."""
        fields = Path(f"/proc/{self._child}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
