"""The choices of one answer: their requests, and what they say, as it comes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Self

from engine.events import Delta
from engine.groups.samples import seed_of
from engine.host.prompts import Prompt
from engine.host.stream import Stream
from engine.params import SamplingParams
from engine.server.desk import Desk
from engine.server.limits import Ticket
from engine.server.metrics import Metrics

Batch = list[tuple[int, list[Delta]]]  # choices that have news, and what they said


@dataclass(slots=True)
class _Place:
    """One choice: its stream, once it is handed in."""

    stream: Stream | None = None
    heard: bool = False
    done: bool = False
    said_at: float = 0.0


@dataclass(slots=True)
class Usage:
    prompt: int = 0
    completion: int = 0
    cached: int = 0


@dataclass(eq=False)
class Run:
    """`choices` of each prompt, numbered one prompt after the other. Iterated once; closed always."""

    desk: Desk
    prompts: Sequence[Prompt]
    params: SamplingParams
    choices: int
    ticket: Ticket
    metrics: Metrics
    priority: int = 0
    salt: bytes = b""
    parent: int | None = None  # a running request that this one goes on from, instead of its prompt
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self._places = [_Place() for _ in range(len(self.prompts) * self.choices)]
        self._params = [derived(self.params, n) for n in range(self.choices)]
        self._news: dict[int, None] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._trouble: BaseException | None = None
        self._closed = False

    @property
    def requests(self) -> list[int]:
        """The engine's numbers of what has been handed in."""
        return [place.stream.id for place in self._places if place.stream]

    async def start(self) -> Self:
        """Hands in the first choice of every prompt. The others follow when its blocks can be found."""
        try:
            await self._hand_in(range(0, len(self._places), self.choices))
        except BaseException:
            self.close()
            raise
        return self

    async def __aiter__(self) -> AsyncIterator[Batch]:
        left = len(self._places)
        while left:
            if not self._news and not self._trouble:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self._trouble:
                raise self._trouble
            batch: Batch = []
            for place in self._taken_news():
                if deltas := self._take(place):
                    batch.append((place, deltas))
                    left -= self._places[place].done
            if batch:
                yield batch

    def close(self) -> None:
        """What still runs is aborted."""
        if self._closed:
            return
        self._closed = True
        self.ticket.give_back()
        for task in self._following:
            task.cancel()
        begun = [place for place in self._places if place.stream]
        if running := [place.stream.id for place in begun if place.stream and not place.done]:
            self.desk.abort(running)
        for place in begun:
            assert place.stream is not None
            self.desk.cached_tokens(place.stream.id)

    async def _hand_in(self, places: Sequence[int]) -> None:
        """All of them; then raises what was wrong with any."""
        results = await asyncio.gather(*map(self._hand_in_one, places), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _hand_in_one(self, number: int) -> None:
        prompt, params = self.prompts[number // self.choices], self._params[number % self.choices]
        if self.parent is None:
            stream = await self.desk.submit(prompt, params, priority=self.priority, salt=self.salt)
        else:
            stream = await self.desk.fork(self.parent, params)
        self._places[number].stream = stream
        if number % self.choices == 0:
            self.usage.prompt += stream.prompt_tokens
        stream.listen(partial(self._heard, number))
        self._notice(number)  # for what came before anybody listened

    def _heard(self, place: int) -> None:
        """On the engine's thread."""
        now, one = perf_counter(), self._places[place]
        if one.said_at:
            self.metrics.itl.observe(now - one.said_at)
        one.said_at = now
        self.desk.post.ring(self._notice, place)

    def _notice(self, place: int) -> None:
        self._news[place] = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _taken_news(self) -> list[int]:
        news = list(self._news)
        self._news.clear()
        return news

    def _take(self, number: int) -> list[Delta]:
        place = self._places[number]
        assert place.stream is not None
        deltas = place.stream.take()
        if not deltas:
            return deltas
        if not place.heard:
            place.heard = True
            if number % self.choices == 0:
                self.usage.cached += self.desk.cached_tokens(place.stream.id)
                self._follow(range(number + 1, number + self.choices))
        tokens = sum(len(delta.tokens) for delta in deltas)
        self.usage.completion += tokens
        self.metrics.generated += tokens
        place.done = deltas[-1].finish is not None
        return deltas

    def _follow(self, places: Sequence[int]) -> None:
        """The other choices of a prompt, whose blocks the prefix cache knows by now."""
        if not places:
            return
        task = asyncio.get_running_loop().create_task(self._hand_in(places))
        self._following.add(task)
        task.add_done_callback(self._followed)

    def _followed(self, task: "asyncio.Task[None]") -> None:
        self._following.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._trouble = error
            self._wake()


def derived(params: SamplingParams, choice: int) -> SamplingParams:
    """Each choice draws for itself; where a seed is given, from one that follows from it."""
    if params.seed is None or choice == 0:
        return params
    return replace(params, seed=seed_of(params.seed, choice))
