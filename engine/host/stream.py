"""The deltas of one request on their way to its reader."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from engine.api.commands import Accepted
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
    score: float | None = None  # of ranked replies


class Stream:
    """The deltas of one request, for one reader. Iterate it with `for` or `async for`.

    The engine's thread puts deltas and never waits for the reader. If the engine rejects the request, the
    only delta is a failed one, and `accepted`, `id`, `prompt_tokens` and `result` raise the error itself.
    """

    accepted: Future[Accepted]
    prompt: Sequence[int] = ()  # the prompt's tokens, unless it is a fork

    def __init__(self, wake: Callable[[Delta], None] | None = None) -> None:
        """`wake`: called on the engine's thread after each delta, for a reader that uses `take`."""
        self._deltas: SimpleQueue[Delta] = SimpleQueue()
        self._last: Delta | None = None  # once the reader has it
        self._known: Accepted | None = None  # once it is accepted; a future takes a lock each time
        self._wake = wake

    def bind(self, accepted: Future[Accepted]) -> None:
        """Set the future that tells whether the engine accepts the request."""
        self.accepted = accepted
        accepted.add_done_callback(self._settle)

    @property
    def id(self) -> int:
        """The request's id. Waits until the engine has accepted the request; raises its error if not."""
        return (self._known or self.accepted.result()).id

    @property
    def prompt_tokens(self) -> int:
        return (self._known or self.accepted.result()).prompt_tokens

    def _settle(self, accepted: Future[Accepted]) -> None:
        if (error := accepted.exception()) is None:
            self._known = accepted.result()
        else:
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
            if self._wake is wake:  # else another reader has taken over
                self._wake = None

    def take(self) -> list[Delta]:
        """Return the deltas since the last call, without waiting."""
        deltas = []
        while self._last is None and not self._deltas.empty():
            deltas.append(self._read(block=False))
        return deltas

    def result(self) -> Result:
        """Wait for the unread part of the reply (the first of several). Raises if it failed."""
        return self.results()[0]

    def results(self) -> list[Result]:
        """Wait for the unread part of all replies, by choice. Raises if one failed."""
        unread: dict[int, list[Delta]] = {}
        for delta in self:
            unread.setdefault(delta.choice, []).append(delta)
        if not unread and self._last is not None:  # all of it has been read
            unread[self._last.choice] = [self._last._replace(tokens=(), text="")]
        if self.accepted.done() and (refusal := self.accepted.exception()) is not None:
            raise refusal
        for deltas in unread.values():
            if deltas[-1].finish is Finish.FAILED:
                raise ReplyFailed(deltas[-1].error)
        return [_result(unread[choice]) for choice in sorted(unread)]

    def _read(self, *, block: bool) -> Delta:
        delta = self._deltas.get(block)
        if delta.last:
            self._last = delta
        return delta


def refused(error: EngineError) -> Stream:
    """Return the stream of a request that failed before it reached the engine."""
    accepted: Future[Accepted] = Future()
    accepted.set_exception(error)
    stream = Stream()
    stream.bind(accepted)
    return stream


def _result(deltas: list[Delta]) -> Result:
    last = deltas[-1]
    assert last.finish is not None
    tokens = tuple([token for delta in deltas for token in delta.tokens])
    return Result("".join([delta.text for delta in deltas]), tokens, last.finish, last.score)
