"""The engine's recent events for remote monitors, numbered so that a client can resume after a disconnect."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice
from time import monotonic

from engine.api.events import Event
from engine.api.wire import encode_event
from engine.host.client import EngineClient
from engine.server.async_engine import AsyncEngine
from engine.server.drain import Drain
from engine.server.http import sse
from engine.server.waiters import Waiters

KEPT = 4096


@dataclass(slots=True)
class Note:
    """One item of the stream: an event, a snapshot, a gap or the server's end. Only events have an id."""

    kind: str
    data: bytes
    id: str = ""


_STILL_HERE = Note("", b"")


class EventHistory:
    """Receives events on the engine's thread. Readers follow on the loop, each at its own pace."""

    def __init__(
        self, host: EngineClient, engine: AsyncEngine, drain: Drain, boot: str, pulse: float
    ) -> None:
        self._engine, self._drain, self._boot = engine, drain, boot
        self._pulse = pulse  # seconds without events after which a keep-alive is sent
        self._new: deque[Event] = deque()
        self._ring: deque[Event] = deque(maxlen=KEPT)
        self.count = 0  # of all events so far; an event's number is its position
        self._readers = Waiters()
        self._unsubscribe = host.subscribe(self._on_event)
        self._ending = asyncio.get_running_loop().create_task(self._end())

    @property
    def newest(self) -> str:
        """The id of the newest event; `follow` continues after it."""
        return f"{self._boot}-{self.count}"

    def close(self) -> None:
        self._unsubscribe()
        self._ending.cancel()

    async def _end(self) -> None:
        """Wake waiting readers at shutdown, so that they end."""
        await self._drain.wait()
        self._readers.wake()

    def _on_event(self, event: Event) -> None:
        """Runs on the engine's thread."""
        self._new.append(event)
        self._engine.notifier.notify(self._gather, 0)

    def _gather(self, _: int) -> None:
        while self._new:
            self._ring.append(self._new.popleft())
            self.count += 1
        self._readers.wake()

    async def follow(self, last: str | None, every: float | None) -> AsyncIterator[Note]:
        """Yield events after the id `last`, or from now on, and a snapshot every `every` seconds.

        At shutdown it says so and ends.
        """
        at, missed = self._place(last)
        if missed != 0:
            yield self._gap(missed)
        shot_at = monotonic()
        while not self._drain.begun:
            if (lost := self.count - len(self._ring) - at) > 0:  # the reader was too slow for the ring
                at += lost
                yield self._gap(lost)
            for event in list(islice(self._ring, at - self.count + len(self._ring), None)):
                at += 1
                yield Note("event", sse.encoded(encode_event(event)), f"{self._boot}-{at}")
            if every is not None and monotonic() >= shot_at:
                yield Note("snapshot", await self._engine.snapshot_json())
                shot_at = max(shot_at + every, monotonic())
            if at == self.count and not self._drain.begun:
                timeout = self._pulse if every is None else max(0.0, shot_at - monotonic())
                if not await self._readers.wait(timeout) and every is None:
                    yield _STILL_HERE
        yield Note("ending", sse.encoded({}))

    def _place(self, last: str | None) -> tuple[int, int | None]:
        """Return where to resume and how many events are lost; None: unknown, `last` is of another run."""
        if not last:
            return self.count, 0
        boot, _, number = last.rpartition("-")
        oldest = self.count - len(self._ring)
        if boot != self._boot or not number.isdecimal() or len(number) > 18 or int(number) > self.count:
            return oldest, None
        return max(int(number), oldest), max(0, oldest - int(number))

    def _gap(self, missed: int | None) -> Note:
        return Note("gap", sse.encoded({"missed": missed}))
