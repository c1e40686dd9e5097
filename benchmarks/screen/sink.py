"""A terminal that only counts bytes, and a clock for the event loop."""

import gc
import time
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from textual.drivers.headless_driver import HeadlessDriver


class Sink(HeadlessDriver):
    """Counts the bytes sent to it; the program renders as for a real terminal."""

    sent = 0

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        Sink.sent += len(data.encode())


@dataclass
class Stretches:
    """How long each callback blocked the loop, in seconds of its thread's processor time."""

    seconds: list[float] = field(default_factory=list)
    of_collector: list[float] = field(default_factory=list)  # the share of each spent in garbage collection
    _collecting: float = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        run = Handle._run

        def timed(handle: Handle) -> None:
            begin, self._collecting = time.thread_time(), 0.0
            run(handle)
            self.seconds.append(time.thread_time() - begin)
            self.of_collector.append(self._collecting)

        Handle._run = timed  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collector)
        try:
            yield
        finally:
            Handle._run = run  # type: ignore[method-assign]
            gc.callbacks.remove(self._collector)

    def clear(self) -> None:
        self.seconds.clear()
        self.of_collector.clear()

    def _collector(self, phase: str, _info: dict[str, int]) -> None:
        self._collecting += time.thread_time() * (1 if phase == "stop" else -1)
