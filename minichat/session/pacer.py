"""Whose turn it is to draw: the screen shares the interpreter with the engine, so it draws little."""

import asyncio
import time
from collections.abc import Callable

_BETWEEN = 0.02  # seconds between the turns of two panes: never two in one tick
_SHARE = 0.05  # of one core that drawing may take; turns come later where they cost more
_LATEST = 0.25  # seconds to the next turn, whatever they cost


class Pacer:
    """Each stream gets a turn at most `rate` times a second; many, or costly ones, slow each other down."""

    def __init__(self, rate: float, cpu: Callable[[], float] = time.thread_time) -> None:
        self.rate = rate
        self._cpu = cpu  # of the thread that draws
        self._spent = cpu()
        self._free_at = 0.0

    async def turn(self) -> None:
        now, spent = asyncio.get_running_loop().time(), self._cpu()
        at = max(now + 1 / self.rate, self._free_at)
        self._free_at = at + min(max(_BETWEEN, (spent - self._spent) / _SHARE), _LATEST)
        self._spent = spent
        await asyncio.sleep(at - now)
