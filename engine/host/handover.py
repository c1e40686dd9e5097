"""From any thread to an event loop: one wake for all that came since the last."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def call_on(loop: asyncio.AbstractEventLoop, work: Callable[..., object], *args: Any) -> None:
    """Has the loop do it, from any thread. A loop that is closed has no reader left."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work, *args)


class Handover(Generic[T]):
    """`deliver` runs on the loop with what has gathered: at once after a pause, else each `tick` seconds."""

    def __init__(self, deliver: Callable[[list[T]], None], tick: float = 0.0) -> None:
        self._deliver, self._tick = deliver, tick
        self._loop = asyncio.get_running_loop()
        self._gathered: deque[T] = deque()
        self._woken = False
        self._delivered = 0.0

    def __call__(self, item: T) -> None:
        self._gathered.append(item)
        if not self._woken:
            self._woken = True
            call_on(self._loop, self._come)

    def _come(self) -> None:
        wait = self._delivered + self._tick - perf_counter()
        if wait > 0:
            self._loop.call_later(wait, self._bring)
        else:
            self._bring()

    def _bring(self) -> None:
        self._delivered = perf_counter()
        self._woken = False
        items = []
        while self._gathered:
            items.append(self._gathered.popleft())
        if items:
            self._deliver(items)
