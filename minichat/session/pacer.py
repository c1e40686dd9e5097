"""Limits how often the screen draws, because it shares the interpreter with the engine."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

_BETWEEN = 0.02  # seconds between the updates of two panes: never two in one tick
_SHARE = 0.05  # the share of one core for drawing; costlier updates are spaced out
_LONGEST = 0.25  # maximum seconds that one update defers the next
_LATEST = 0.5  # maximum seconds between two updates of a stream, whatever the others cost


class Pacer:
    """Each stream is drawn at most `rate` times per second; many or costly streams slow each other down."""

    def __init__(self, rate: float, cpu: Callable[[], float] = time.thread_time) -> None:
        self.rate = rate
        self._cpu = cpu  # of the drawing thread
        self._spent = cpu()
        self._free_at = 0.0
        self._rush = asyncio.Event()

    async def wait(self) -> None:
        """Return when this stream may be drawn again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.delay()):  # wait_for may swallow a cancellation
                await self._rush.wait()

    def rush(self) -> None:
        """The program ends: let no stream wait any more."""
        self._rush.set()

    def delay(self) -> float:
        """Take the next turn, and return the seconds until then."""
        now, spent = asyncio.get_running_loop().time(), self._cpu()
        at = max(now + 1 / self.rate, min(self._free_at, now + _LATEST))
        self._free_at = at + min(max(_BETWEEN, (spent - self._spent) / _SHARE), _LONGEST)
        self._spent = spent
        return at - now
