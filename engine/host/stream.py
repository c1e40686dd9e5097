"""One reply on its way to whoever asked for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from engine.api.commands import Begun
from engine.api.errors import EngineError
from engine.api.events import Delta
from engine.api.request import Finish
from engine.host.handover import call_on


class ReplyFailed(EngineError):
    """The engine could not finish a reply; the message says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole reply."""

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    score: float | None = None  # what it was ranked by, where replies are


class Stream:
    """Deltas of one request, for one reader: iterate it, plainly or with `async for`, up to the last.

    The engine's thread puts, and never waits for the reader. Of a request that the engine refuses, the only
    delta is one that has failed; `begun`, `id`, `prompt_tokens` and `result` raise the refusal itself.
    """

    begun: Future[Begun]

    def __init__(self) -> None:
        self._deltas: SimpleQueue[Delta] = SimpleQueue()
        self._last: Delta | None = None  # once the reader has it
        self._wake: Callable[[Delta], None] | None = None

    def begin(self, begun: Future[Begun]) -> None:
        """`begun`: whether the engine takes the request, which it says at the end of a step."""
        self.begun = begun
        begun.add_done_callback(self._refuse)

    @property
    def id(self) -> int:
        """Waits until the engine has taken the request; raises where it has not."""
        return self.begun.result().id

    @property
    def prompt_tokens(self) -> int:
        return self.begun.result().prompt_tokens

    def _refuse(self, begun: Future[Begun]) -> None:
        if (error := begun.exception()) is not None:
            field = error.field if isinstance(error, EngineError) else ""
            self.put(Delta(-1, finish=Finish.FAILED, error=str(error), fault=field))

    def put(self, delta: Delta) -> None:
        self._deltas.put(delta)
        if (wake := self._wake) is not None:
            wake(delta)

    def __iter__(self) -> Iterator[Delta]:
        while self._last is None:
            yield self._read(block=True)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: Delta) -> None:
            call_on(loop, arrived.set)

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

    def listen(self, wake: Callable[[Delta], None]) -> None:
        """For a reader that takes in its own time: `wake` runs on the engine's thread after each delta."""
        self._wake = wake

    def take(self) -> list[Delta]:
        """All that has come since; waits for nothing."""
        deltas = []
        while self._last is None and not self._deltas.empty():
            deltas.append(self._read(block=False))
        return deltas

    def result(self) -> Result:
        """Waits for the whole reply, the first of several, or what is left of it; raises where it failed."""
        return self.results()[0]

    def results(self) -> list[Result]:
        """What is left of all replies, by their choice; raises where one failed."""
        heard: dict[int, list[Delta]] = {}
        for delta in self:
            heard.setdefault(delta.choice, []).append(delta)
        if not heard and self._last is not None:  # all of it has been read
            heard[self._last.choice] = [self._last._replace(tokens=(), text="")]
        if self.begun.done() and (refusal := self.begun.exception()) is not None:
            raise refusal
        for deltas in heard.values():
            if deltas[-1].finish is Finish.FAILED:
                raise ReplyFailed(deltas[-1].error)
        return [_result(heard[choice]) for choice in sorted(heard)]

    def _read(self, *, block: bool) -> Delta:
        delta = self._deltas.get(block)
        if delta.last:
            self._last = delta
        return delta


def refused(error: EngineError) -> Stream:
    """Of a request that never came as far as the engine."""
    begun: Future[Begun] = Future()
    begun.set_exception(error)
    stream = Stream()
    stream.begin(begun)
    return stream


def _result(deltas: list[Delta]) -> Result:
    last = deltas[-1]
    assert last.finish is not None
    tokens = tuple([token for delta in deltas for token in delta.tokens])
    return Result("".join([delta.text for delta in deltas]), tokens, last.finish, last.score)
