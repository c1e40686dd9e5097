"""The loop on which tests drive a screen: it tells when nothing is left to do.

After a key Textual's pilot waits until the process has used little CPU time for a while. That takes 40 ms a
key, and on a busy machine it may end too early. Here it waits until the loop has nothing to run and no timer
is due soon.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import textual.app
import textual.pilot

T = TypeVar("T")

SOON = 0.02  # seconds: a timer that is due so soon belongs to what was begun, a frame for one
LONGEST = 1.0  # seconds, where something goes on and on


class Watchful(selectors.DefaultSelector):
    """The loop calls `select` once a turn; only when it has nothing to run it allows that to take time."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[None]] = []

    def select(self, timeout: float | None = None) -> Any:
        if self.waiting and (timeout is None or timeout > SOON):
            for each in self.waiting:
                if not each.done():
                    each.set_result(None)
            self.waiting.clear()
            timeout = 0
        return super().select(timeout)


_selectors: "WeakKeyDictionary[asyncio.AbstractEventLoop, Watchful]" = WeakKeyDictionary()


def new_loop() -> asyncio.AbstractEventLoop:
    selector = Watchful()
    made = asyncio.SelectorEventLoop(selector)
    _selectors[made] = selector
    return made


def run(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on such a loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


async def rest(min_sleep: float = 0.0, max_sleep: float = LONGEST) -> None:
    """Until nothing is left to do; the arguments are Textual's."""
    running = asyncio.get_running_loop()
    done = running.create_future()
    _selectors[running].waiting.append(done)
    await asyncio.wait([done], timeout=max_sleep)


textual.app.wait_for_idle = textual.pilot.wait_for_idle = rest  # type: ignore[attr-defined]
