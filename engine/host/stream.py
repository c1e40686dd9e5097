"""One reply on its way to whoever asked for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from engine.errors import EngineError
from engine.events import Delta
from engine.request import Finish


class ReplyFailed(EngineError):
    """The engine could not finish a reply; the message says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole reply."""

    text: str
    tokens: tuple[int, ...]
    finish: Finish


class Stream:
    """Deltas of one request, for one reader: iterate it, plainly or with `async for`. The last has a finish.

    The engine's thread puts, and never waits for the reader.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self.id = -1  # set when the engine has taken the request
        self.prompt_tokens = prompt_tokens
        self._deltas: SimpleQueue[Delta] = SimpleQueue()
        self._last: Delta | None = None  # once the reader has it
        self._wake: Callable[[], None] | None = None

    def put(self, delta: Delta) -> None:
        self._deltas.put(delta)
        if (wake := self._wake) is not None:
            wake()

    def __iter__(self) -> Iterator[Delta]:
        while self._last is None:
            yield self._read(block=True)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(arrived.set)

        self._wake = wake
        try:
            while self._last is None:
                arrived.clear()
                if self._deltas.empty():
                    await arrived.wait()
                else:
                    yield self._read(block=False)
        finally:
            if self._wake is wake:  # else somebody reads on where this one has left
                self._wake = None

    def listen(self, wake: Callable[[], None]) -> None:
        """For a reader that takes in its own time: `wake` runs on the engine's thread after each delta."""
        self._wake = wake

    def take(self) -> list[Delta]:
        """All that has come since; waits for nothing."""
        deltas = []
        while self._last is None and not self._deltas.empty():
            deltas.append(self._read(block=False))
        return deltas

    def result(self) -> Result:
        """Waits for the whole reply, or what is left of it; raises where it failed."""
        text: list[str] = []
        tokens: list[int] = []
        for delta in self:
            text.append(delta.text)
            tokens += delta.tokens
        last = self._last
        assert last is not None and last.finish is not None
        if last.finish is Finish.FAILED:
            raise ReplyFailed(last.error)
        return Result("".join(text), tuple(tokens), last.finish)

    def _read(self, *, block: bool) -> Delta:
        delta = self._deltas.get(block)
        if delta.finish:
            self._last = delta
        return delta
