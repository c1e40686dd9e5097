"""Requests of an engine in this process, and when their tokens arrive."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.serving.engine import Engine


@dataclass
class Reader:
    """One reply, with the arrival time of each token."""

    submitted: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def __call__(self, delta: Delta) -> None:
        self.times += [time.perf_counter()] * len(delta.tokens)
        self.tokens += delta.tokens

    @property
    def ttft(self) -> float:
        return self.times[0] - self.submitted

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]


def prompts(seed: int = 0) -> Iterator[int]:
    """An endless sequence of token ids, the same for the same seed."""
    numbers = random.Random(seed)
    while True:
        yield numbers.randrange(10, 3000)


def ask(engine: Engine, ids: Iterator[int], prompt: int, reply: int, **options: Any) -> Reader:
    """Submit a greedy request with a prompt of `prompt` tokens and a reply of `reply`."""
    reader = Reader()
    params = SamplingParams(temperature=0, max_tokens=reply, ignore_eos=True)
    engine.submit([next(ids) for _ in range(prompt)], params, reader, **options)
    return reader


def drain(engine: Engine, until: Callable[[], object] = lambda: False) -> None:
    while engine.busy and not until():
        if not engine.step() and engine.busy:
            time.sleep(engine.pause())


def abort_all(engine: Engine) -> None:
    for id in list(engine.scheduler.requests):
        engine.abort(id)
