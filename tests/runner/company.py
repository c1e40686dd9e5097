"""Random workloads: prompts that share blocks, arrive at any step, are preempted, and cut in any way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hypothesis import strategies as st

from engine.api.params import SamplingParams
from engine.serving.engine import Engine
from tests.outputs import Output
from tests.runner.small import drain, engine_on, turn

T = TypeVar("T", bound=Output)
_STEPS = 10  # in which requests arrive and are preempted


@dataclass(frozen=True)
class Company:
    prompts: tuple[tuple[int, ...], ...]
    params: tuple[SamplingParams, ...]  # of each request
    at: tuple[int, ...]  # the step at which each is submitted
    preempts: tuple[tuple[int, int], ...]  # (step, request)
    depth: int
    step_tokens: int
    preemption: str
    chunked: bool

    def run(
        self, folder: Path, submit: Callable[[Engine, Sequence[int], SamplingParams], tuple[int, T]]
    ) -> list[T]:
        """The output of each request, on a small engine."""
        engine = engine_on(
            folder,
            blocks=8,
            host_blocks=8,
            max_running=3,
            max_step_tokens=self.step_tokens,
            chunked_prefill=self.chunked,
            depth=self.depth,
            preemption=self.preemption,
        )
        found: dict[int, tuple[int, T]] = {}
        for step in range(_STEPS):
            for n, at in enumerate(self.at):
                if at == step:
                    found[n] = submit(engine, self.prompts[n], self.params[n])
            for at, n in self.preempts:
                if at == step and n in found and found[n][0] in engine.scheduler.requests:
                    engine.preempt(found[n][0])
            turn(engine)
        drain(engine)
        return [found[n][1] for n in range(len(self.prompts))]


@st.composite
def companies(draw: st.DrawFn, params: st.SearchStrategy[SamplingParams]) -> Company:
    count = draw(st.integers(1, 4))
    many = lambda each: st.tuples(*[each] * count)  # noqa: E731
    prompts = st.tuples(st.sampled_from([0, 15, 16, 33]), st.integers(1, 30)).map(
        lambda lengths: (1, *range(60, 60 + lengths[0]), *range(200 - lengths[1], 200))
    )
    return Company(
        prompts=draw(many(prompts)),
        params=draw(many(params)),
        at=draw(many(st.integers(0, 6))),
        preempts=draw(
            st.lists(st.tuples(st.integers(1, 9), st.integers(0, count - 1)), max_size=4).map(tuple)
        ),
        depth=draw(st.integers(0, 1)),
        step_tokens=draw(st.sampled_from([1, 3, 8, 17, 200])),
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        chunked=draw(st.booleans()),
    )
