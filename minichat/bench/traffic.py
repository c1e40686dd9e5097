"""Requests of an engine in this process, and when their tokens arrive."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from engine.api.errors import EngineError, RequestTooLong
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.serving.engine import Engine


@dataclass
class Reader:
    """One reply, with the arrival time of each token."""

    submitted: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    error: str = ""

    def __call__(self, delta: Delta) -> None:
        self.times += [time.perf_counter()] * len(delta.tokens)
        self.tokens += delta.tokens
        self.error = self.error or delta.error

    @property
    def ttft(self) -> float:
        return self.times[0] - self.submitted

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]


def prompts(seed: int = 0, vocab: int = 3000) -> Iterator[int]:
    """An endless sequence of token ids below `vocab`, the same for the same seed."""
    numbers = random.Random(seed)
    while True:
        yield numbers.randrange(10, min(vocab, 3000))


def take(ids: Iterator[int], count: int) -> list[int]:
    return [next(ids) for _ in range(count)]


def ask(engine: Engine, ids: Iterator[int], prompt: int, reply: int, **options: Any) -> Reader:
    """Submit a greedy request with a prompt of `prompt` tokens and a reply of `reply`."""
    return submit(engine, take(ids, prompt), reply, **options)


def submit(
    engine: Engine,
    prompt: Sequence[int],
    reply: int,
    *,
    temperature: float = 0.0,
    speculate: str = "",
    **options: Any,
) -> Reader:
    """Submit a request with a reply of exactly `reply` tokens."""
    reader = Reader()
    params = SamplingParams(temperature=temperature, max_tokens=reply, ignore_eos=True, speculate=speculate)
    try:
        engine.submit(prompt, params, reader, **options)
    except RequestTooLong:
        raise EngineError(
            f"a prompt of {len(prompt):,} tokens and a reply of {reply:,} are more than the "
            f"{engine.limits.context:,} tokens that this model takes in all; lower --prompt or --reply"
        ) from None
    return reader


def drain(engine: Engine, until: Callable[[], object] = lambda: False) -> None:
    while engine.busy and not until():
        if not engine.step() and engine.busy:
            time.sleep(engine.pause())


class PeakBlocks(NamedTuple):
    """The cache when most of its blocks are in use, and how many reservations would take then."""

    used: int
    tokens: int  # in those blocks
    own: int  # blocks reserved for each request's own maximum
    whole: int  # blocks reserved for the model's context


def peak_blocks(engine: Engine) -> PeakBlocks:
    """Run all requests to their end."""
    pool, running, peak = engine.scheduler.pool, engine.scheduler.running, PeakBlocks(0, 0, 0, 0)
    while engine.busy:
        engine.step()
        if pool.in_use > peak.used:
            peak = PeakBlocks(
                used=pool.in_use,
                tokens=sum(each.launched for each in running),
                own=sum(-(-each.max_len // pool.block_size) for each in running),
                whole=len(running) * engine.limits.context // pool.block_size,
            )
    return peak


def seconds(engine: Engine, readers: Sequence[Reader]) -> float:
    """Run these requests to their end. Return the seconds since the first was submitted."""
    drain(engine)
    for reader in readers:
        if reader.error:
            raise EngineError(reader.error)
    return time.perf_counter() - min(reader.submitted for reader in readers)


def abort_all(engine: Engine) -> None:
    for id in list(engine.scheduler.requests):
        engine.abort(id)
