"""An event loop for screen tests that reports when it is idle.

After each key Textual's pilot waits until the process has used little CPU time for a while. That takes 40 ms
per key, and on a busy machine it may end too early. Here it waits until the loop has nothing to run and no
timer is due soon. Then only a handler that waits for a thread is unfinished, so the pilot need not send a
message to each widget of the screen: only to those that have such handlers.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import textual.app
import textual.pilot
from textual.app import App
from textual.pilot import Pilot

from tests.waiting import LIMIT, tick

T = TypeVar("T")

SOON = 0.02  # seconds: a timer due this soon belongs to current work, such as a frame
LONGEST = 1.0  # seconds, if the loop never becomes idle
LEAVING = 0.2  # seconds, once the program has been left: its frames go on until it has ended


class IdleSelector(selectors.DefaultSelector):
    """The loop calls `select` once per iteration, and lets it block only when there is nothing to run."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[float]] = []

    def select(self, timeout: float | None = None) -> Any:
        if self.waiting and (timeout is None or timeout > SOON):
            for each in self.waiting:
                if not each.done():
                    each.set_result(inf if timeout is None else timeout)
            self.waiting.clear()
            timeout = 0
        return super().select(timeout)


def _none() -> None:
    """No program runs."""


_driven: Callable[[], App[Any] | None] = _none  # the program of the latest pilot
_selectors: "WeakKeyDictionary[asyncio.AbstractEventLoop, IdleSelector]" = WeakKeyDictionary()


def forget() -> None:
    """Call when a program has ended: waits for the next one are as long as ever."""
    global _driven
    _driven = _none


def new_loop() -> asyncio.AbstractEventLoop:
    selector = IdleSelector()
    made = asyncio.SelectorEventLoop(selector)
    _selectors[made] = selector
    return made


def run(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, on such a loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


async def rest(min_sleep: float = 0.0, max_sleep: float = LONGEST) -> None:
    """Wait until the loop is idle; the parameters are those of Textual's function."""
    app = _driven()
    left = app is not None and app.return_code is not None
    await asyncio.wait([_idle()], timeout=min(max_sleep, LEAVING) if left else max_sleep)


async def next_timer() -> float:
    """Wait until the loop is idle, and return the seconds until its next timer, at most LIMIT."""
    async with asyncio.timeout(LIMIT):
        return await _idle()


async def quiet() -> None:
    """Wait until no timer is due for a long time. Timers that fire once may run out first."""
    latest = time.monotonic() + LIMIT
    while await next_timer() < LIMIT / 2:
        assert time.monotonic() < latest, "a timer fires again and again"
        await tick()


def _idle() -> asyncio.Future[float]:
    running = asyncio.get_running_loop()
    done: asyncio.Future[float] = running.create_future()
    _selectors[running].waiting.append(done)
    return done


class ImpatientPilot(Pilot[Any]):
    """Waits for the program, its screen and the focused widgets only."""

    def __init__(self, app: App[Any]) -> None:
        global _driven
        super().__init__(app)
        _driven = ref(app)

    async def _wait_for_screen(self, timeout: float = LIMIT) -> bool:
        """Return whether they have processed their messages; they have not if the program failed."""
        app = self.app
        if not app.screen_stack:
            return False
        focused = app.focused.ancestors_with_self if app.focused else ()
        processed = list[asyncio.Event]()
        for each in {app, app.screen, *focused}:
            if each.call_later((event := asyncio.Event()).set):
                processed.append(event)
        failed = asyncio.ensure_future(app._exception_event.wait())
        waiting = asyncio.gather(*(each.wait() for each in processed))
        async with asyncio.timeout(timeout):
            await asyncio.wait([waiting, failed], return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        if not waiting.done():
            waiting.cancel()
            return False
        return True


textual.app.wait_for_idle = textual.pilot.wait_for_idle = rest  # type: ignore[attr-defined]
