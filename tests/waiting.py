"""Waiting for the work of another thread, process or task. The limit only lets a test that hangs fail."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event, Lock

LIMIT = 40.0  # seconds; generous, for a loaded machine
_TICK = 0.005


def becomes(holds: Callable[[], object], tick: float = _TICK) -> bool:
    """Return whether the condition holds before the limit. `tick`: seconds between two looks."""
    latest = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > latest:
            return False
        time.sleep(tick)
    return True


def accepts_connections(path: Path) -> bool:
    """Whether a server listens. Its socket is there a little earlier."""
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0


class NotingLock:
    """A lock that notes when a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock, self.waited = Lock(), Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.waited.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


async def tick() -> None:
    await asyncio.sleep(_TICK)


async def until(holds: Callable[[], object], rest: Callable[[], Awaitable[object]] = tick) -> None:
    """Wait until the condition holds, and fail at the limit. `rest` gives way to the work."""
    latest = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < latest, "timed out waiting for a condition"
        await rest()
