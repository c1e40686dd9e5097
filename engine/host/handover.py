"""Items from any thread to an event loop, with one wake-up per batch."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_LONGEST = 0.1  # seconds between deliveries: a process that did not get the processor was not busy


def call_on(loop: asyncio.AbstractEventLoop, work: Callable[..., object], *args: Any) -> None:
    """Schedule a call on the loop from any thread. Does nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work, *args)


class Handover(Generic[T]):
    """Calls `deliver` on the loop with gathered items, at once after a pause.

    It runs in the context in which the handover was made, not in that of the thread: what it starts there,
    such as a timer of the screen, depends on context variables.

    With a `tick`, deliveries are at least as many seconds apart, and far enough that they and the tasks they
    wake take at most two thirds of the loop's time: batches grow, and the loop stays responsive.
    """

    def __init__(self, deliver: Callable[[list[T]], None], tick: float = 0.0) -> None:
        self._deliver, self._tick = deliver, tick
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._gathered: deque[T] = deque()
        self._woken = False
        self._delivered = self._next = 0.0

    def __call__(self, item: T) -> None:
        self._gathered.append(item)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._schedule, context=self._context)

    def _schedule(self) -> None:
        wait = self._next - perf_counter()
        if wait > 0:
            self._loop.call_later(wait, self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        self._delivered = perf_counter()
        self._next = self._delivered + self._tick
        self._woken = False
        items = []
        while self._gathered:
            items.append(self._gathered.popleft())
        if items:
            self._deliver(items)
            if self._tick:
                self._loop.call_soon(self._settle)  # after the tasks that the delivery woke

    def _settle(self) -> None:
        busy = perf_counter() - self._delivered
        self._next = max(self._next, self._delivered + min(1.5 * busy, _LONGEST))
