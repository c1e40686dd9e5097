"""The engine requests behind one API response, and their deltas as they arrive."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Self

from engine.api.errors import BadParams
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.host.client import Sink
from engine.host.prompts import Prompt
from engine.host.stream import Stream
from engine.server.async_engine import AsyncEngine
from engine.server.http.limits import Ticket
from engine.server.native.metrics import Metrics
from engine.server.reply_grammar import ToolCallRules, blamed
from engine.server.urgency import USUAL, Urgency
from engine.server.waiters import Waiters

Batch = list[tuple[int, list[Delta]]]  # prompts with new deltas, and those deltas in order


@dataclass(slots=True)
class _Place:
    """One prompt, and its stream once the engine has accepted it."""

    submitted: asyncio.Future[Stream] | None = None
    stream: Stream | None = None
    started: bool = False
    done: bool = False
    last_at: dict[int, float] = field(default_factory=dict)  # time of the latest tokens, by choice
    lengths: dict[int, int] = field(default_factory=dict)  # tokens received, by choice


@dataclass(slots=True)
class Usage:
    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def record(self) -> dict[str, Any]:
        """Return the usage in OpenAI's form."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(eq=False)
class Generation:
    """One request per prompt, with `params.samples` choices each. Begin, wait for `accepted`, iterate once;
    always close.
    """

    engine: AsyncEngine
    prompts: Sequence[Prompt]
    params: SamplingParams
    ticket: Ticket
    metrics: Metrics
    urgency: Urgency = USUAL
    salt: bytes = b""
    reply_prefix: Sequence[int] = ()  # tokens that each reply starts with
    parent: int | None = None  # a running request to fork, in place of a prompt
    adapter: str = ""  # the name of a loaded one
    calls: ToolCallRules | None = None  # in the grammar of the replies
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self._places = [_Place() for _ in self.prompts]
        # Ranked replies arrive whole, so the time between their tokens is meaningless.
        self._timed = self.params.beams == 1 and self.params.best_of is None
        self._ready: dict[int, None] = {}
        self._reader = Waiters()
        self._closed = False

    @property
    def requests(self) -> list[int]:
        """The engine's ids of the accepted requests."""
        return [place.stream.id for place in self._places if place.stream]

    @property
    def prompt_ids(self) -> list[Sequence[int]]:
        """The tokens of each accepted prompt."""
        return [place.stream.prompt for place in self._places if place.stream]

    def begin(self) -> Self:
        """Submit all prompts without waiting. If the tasks of requests that arrive together took turns before
        this, the engine would get the first prompt only after the last one has been read.
        """
        try:
            for number, prompt in enumerate(self.prompts):
                self._places[number].submitted = self._submit(prompt, partial(self._on_delta, number))
        except BaseException:
            self.close()
            raise
        return self

    async def start(self) -> Self:
        """Submit all prompts, and wait until they are accepted."""
        return await self.begin().accepted()

    async def accepted(self) -> Self:
        """Wait until all prompts are accepted. If one fails, close the others and raise its error."""
        try:
            if len(self._places) == 1:
                await self._accept(0)
            else:
                await self._accept_all()
        except BadParams as error:
            self.close()
            raise blamed(error, self.params.grammar, self.calls) from None
        except BaseException:
            self.close()
            raise
        self.metrics.submitted(self.params, len(self.prompts))
        return self

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches()

    async def batches(self, pulse: float | None = None) -> AsyncIterator[Batch]:
        """Yield batches as they arrive, and an empty one after `pulse` seconds without any."""
        left = len(self._places)
        while left:
            if not self._ready and not await self._reader.wait(pulse):
                yield []
                continue
            batch: Batch = []
            for place in self._drain_ready():
                if deltas := self._take(place):
                    batch.append((place, deltas))
                    left -= self._places[place].done
            if batch:
                yield batch

    def close(self) -> None:
        """Abort what is still running, and free its places in the concurrency limit."""
        if self._closed:
            return
        self._closed = True
        self.ticket.release()
        if running := [place.stream.id for place in self._places if place.stream and not place.done]:
            self.engine.abort(running)
        for place in self._places:
            if place.submitted and not place.stream:
                self.engine.drop(place.submitted)
        for request in self.requests:
            self.engine.forget(request)

    def _submit(self, prompt: Prompt, wake: Sink) -> asyncio.Future[Stream]:
        if self.parent is not None:
            return self.engine.fork(self.parent, self.params, wake)
        return self.engine.submit(
            prompt,
            self.params,
            urgency=self.urgency,
            salt=self.salt,
            reply_prefix=self.reply_prefix,
            adapter=self.adapter,
            wake=wake,
        )

    async def _accept_all(self) -> None:
        each = map(self._accept, range(len(self._places)))
        for error in await asyncio.gather(*each, return_exceptions=True):
            if error is not None:
                raise error

    async def _accept(self, number: int) -> None:
        place = self._places[number]
        assert place.submitted is not None
        place.stream = stream = await self.engine.accepted(place.submitted)
        self.usage.prompt += stream.prompt_tokens

    def _on_delta(self, number: int, delta: Delta) -> None:
        """Runs on the engine's thread."""
        if delta.tokens and self._timed:
            now, last_at = perf_counter(), self._places[number].last_at
            if (before := last_at.get(delta.choice)) is not None:
                count = len(delta.tokens)
                self.metrics.itl.observe((now - before) / count, count)
            last_at[delta.choice] = now
        self.engine.notifier.notify(self._notice, number)

    def _notice(self, place: int) -> None:
        self._ready[place] = None
        self._reader.wake()

    def _drain_ready(self) -> list[int]:
        ready = list(self._ready)
        self._ready.clear()
        return ready

    def _take(self, number: int) -> list[Delta]:
        place = self._places[number]
        assert place.stream is not None
        deltas = place.stream.take()
        if not deltas:
            return deltas
        if not place.started:
            place.started = True
            found = self.engine.cached_tokens(place.stream.id)  # of a reply that it continues, too
            self.usage.cached += min(found, place.stream.prompt_tokens)
        tokens, unsent, lengths = 0, 0, place.lengths
        for delta in deltas:
            count = len(delta.tokens)
            tokens += count
            unsent += delta.unsent
            lengths[delta.choice] = lengths.get(delta.choice, 0) + count
        self.usage.completion += tokens
        self.metrics.generated += tokens + unsent
        place.done = deltas[-1].last
        if place.done:
            self.metrics.longest.observe(max(lengths.values()))
        return deltas
