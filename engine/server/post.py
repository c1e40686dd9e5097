"""From the engine's thread to the event loop: one wake for all that came since the last."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

_TICK = 0.004  # seconds between two deliveries: a wake makes the engine's thread wait for the interpreter

Notice = Callable[[int], None]


class Post:
    """Rung by the engine's thread for a place of a reader; the reader hears of it on the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung: deque[tuple[Notice, int]] = deque()
        self._woken = False
        self._delivered = 0.0

    def ring(self, notice: Notice, place: int) -> None:
        """From any thread; `notice` runs on the loop."""
        self._rung.append((notice, place))
        if not self._woken and not self._loop.is_closed():
            self._woken = True
            self._loop.call_soon_threadsafe(self._come)

    def _come(self) -> None:
        """At once after a pause; else with all that comes within a tick."""
        wait = self._delivered + _TICK - perf_counter()
        if wait > 0:
            self._loop.call_later(wait, self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        self._delivered = perf_counter()
        self._woken = False
        rung = self._rung
        while rung:
            notice, place = rung.popleft()
            notice(place)
