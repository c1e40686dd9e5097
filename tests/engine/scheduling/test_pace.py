"""Prompts beside decodes take as many tokens as the factor allows, by what the engine has measured."""

import itertools
import random
from bisect import bisect_left
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.commands import SetMaxSlowdown
from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.dry import dry_engine
from engine.execution.protocol import StepResult
from engine.host.thread import EngineThread
from engine.scheduling.pace import LEAST, PLAIN_LEAST, RETRY, SIZES, StepPace, within
from engine.scheduling.step import Rows, Step, StepRow
from tests.cases import soak
from tests.engine.ledger import Clock, LedgerRunner, drain, ledger_engine
from tests.examples import examples
from tests.outputs import Output


@dataclass
class Machine:
    """A GPU: sizes are rounded up, larger ones are launched one by one, and attention reads the context."""

    per_row: float = 2.5e-5
    per_token: float = 1.8e-5
    per_pair: float = 4e-9
    jump: float = 6e-3
    graphs: int = 512
    noise: float = 0.0
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def plain(self, decodes: int) -> float:
        return 4e-3 + self.per_row * decodes

    def takes(self, decodes: int, count: int, start: int) -> float:
        """Seconds of a step."""
        longer = 0.0
        if count:
            size = SIZES[bisect_left(SIZES, decodes + count)]
            longer = 3e-4 + self.per_token * size + self.per_pair * count * (start + count / 2)
            longer += self.jump * (size > self.graphs)
        usual = self.plain(decodes) + longer
        return usual * (1 + self.noise * self.draw.random())

    def most(self, decodes: int, start: int, factor: float, most: int) -> int:
        """The slow oracle: try every number of tokens."""
        within = factor * self.plain(decodes)
        fitting = [count for count in range(1, most + 1) if self.takes(decodes, count, start) <= within]
        return max([LEAST, *fitting])


def step_of(decodes: int, count: int, start: int) -> Step:
    rows = [StepRow(row, row, 500, 1, samples=True) for row in range(decodes)]
    if count:
        rows.append(StepRow(decodes, decodes, start, count, samples=False))
    single = decodes + (count == 1)
    return Step(0, Rows.of(rows), np.zeros(decodes + count, np.int64), single=single)


def run(
    pace: StepPace,
    machine: Machine,
    *,
    decodes: Callable[[int], int],
    steps: int,
    factor: float = 1.5,
    length: int = 8192,
    most: int = 8192,
) -> list[tuple[int, int, float]]:
    """Prompts one after another beside decodes: the tokens, start and slowdown of each step."""
    found, start = [], 0
    pace.limit(factor)
    for at in range(steps):
        rows = decodes(at)
        count = min(pace.prompt_tokens(rows, start, most), length - start)
        seconds = machine.takes(rows, count, start)
        pace.observe(step_of(rows, count, start), count if count > 1 else 0, seconds, None)
        found.append((count, start, seconds / machine.plain(rows)))
        start = (start + count) % length
    return found


def share_over(found: list[tuple[int, int, float]], factor: float) -> float:
    return sum(slower > factor for *_, slower in found) / len(found)


@given(
    seconds=st.floats(-1, 10), start=st.integers(0, 200_000), slope=st.sampled_from((0.0, 1e-9, 1e-6, 1e-3))
)
def test_the_longest_piece_whose_pairs_take_that_long(seconds: float, start: int, slope: float) -> None:
    count = within(seconds, start, slope)
    taken = [slope * each * (start + each / 2) for each in (count - 1, count, count + 1, count + 2)]
    assert count == 0 if seconds < 0 else taken[0] <= seconds
    assert seconds < 0 or not slope or seconds <= taken[3]


def test_as_many_tokens_as_the_factor_allows() -> None:
    pace, machine = StepPace(), Machine()
    found = run(pace, machine, decodes=lambda at: 64, steps=1500)[500:]
    assert share_over(found, 1.5) <= 0.01
    chosen = [(count, machine.most(64, start, 1.5, 1000)) for count, start, _ in found if count]
    sizes = [(bisect_left(SIZES, 64 + count), bisect_left(SIZES, 64 + best)) for count, best in chosen]
    assert sum(best - size <= 1 for size, best in sizes) >= 0.9 * len(sizes), "much smaller than possible"
    assert {count for count, *_ in found if count} > {64}, "pieces get shorter as their contexts get longer"


@pytest.mark.soak
@examples(8)
@given(
    machine=st.builds(
        Machine,
        per_row=st.floats(0, 1e-4),
        per_token=st.floats(1e-6, 1e-4),
        per_pair=st.floats(0, 2e-8),
        jump=st.floats(0, 1e-2),
        graphs=st.sampled_from((64, 128, 256, 512)),
        noise=st.floats(0, 0.03),
    ),
    decodes=st.integers(1, 200),
    factor=st.floats(1.1, 3),
)
def test_slow_steps_are_rare_on_any_machine(machine: Machine, decodes: int, factor: float) -> None:
    found = run(StepPace(), machine, decodes=lambda at: decodes, steps=1200, factor=factor)[600:]
    over = [count for count, _, slower in found if slower > (factor + 0.02) * (1 + machine.noise)]
    assert sum(count > LEAST for count in over) <= 0.02 * len(found), "the smallest piece may be too slow"
    counts = [count for count, *_ in found]
    assert sum(count == 0 for count in counts) <= 0.06 * len(counts), "prompts wait too often"
    assert all(count >= 1 for count in counts if count)


def test_prompts_advance_beside_decodes_that_leave_no_time() -> None:
    found = run(StepPace(), Machine(), decodes=lambda at: 64, steps=400, factor=1.0)
    assert sum(count for count, *_ in found) >= LEAST * 370
    assert max(count for count, *_ in found) == LEAST


def test_a_factor_that_allows_everything() -> None:
    found = run(StepPace(), Machine(), decodes=lambda at: 8, steps=300, factor=1e6, most=2000, length=10**6)
    assert [count for count, *_ in found if count][-100:] == [2000] * 100


def test_rows_that_join_and_leave_are_measured() -> None:
    """Between 1 and 100 decodes; at most 1 step in 30 is slower than allowed after the first steps."""
    pace, machine = StepPace(), Machine(noise=0.02)
    found = run(pace, machine, decodes=lambda at: 1 + abs(100 - at // 20 % 200), steps=6000)[2000:]
    assert share_over(found, 1.5 * 1.03) <= 1 / 30
    best = sum(
        machine.most(1 + abs(100 - at // 20 % 200), found[at][1], 1.5, 200) for at in range(0, 4000, 40)
    )
    assert sum(count for count, *_ in found) / len(found) >= 0.7 * best / 100


def test_one_stall_does_not_make_a_size_slow() -> None:
    """Such as the capture of a graph in the first step of a size."""
    pace, machine, slow = StepPace(), Machine(), set()
    takes = machine.takes

    def stalls_first(decodes: int, count: int, start: int) -> float:
        size = bisect_left(SIZES, decodes + count)
        seconds = takes(decodes, count, start) + 0.05 * (size not in slow)
        slow.add(size)
        return seconds

    machine.takes = stalls_first  # type: ignore[method-assign]
    calm = run(StepPace(), Machine(), decodes=lambda at: 64, steps=RETRY)
    found = run(pace, machine, decodes=lambda at: 64, steps=RETRY)
    tokens = [sum(count for count, *_ in each[RETRY // 4 :]) for each in (found, calm)]
    assert tokens[0] >= 0.95 * tokens[1]


def test_the_limit_can_be_set_live() -> None:
    engine = dry_engine(EngineConfig(model="pocket", max_slowdown=1.25))
    with closing(EngineThread(engine)) as host:
        assert host.snapshot().max_slowdown == 1.25
        host.send(SetMaxSlowdown(2)).result()
        assert (host.snapshot().max_slowdown, engine.scheduler.pace.factor) == (2, 2)
        host.send(SetMaxSlowdown(None)).result()
        assert host.snapshot().max_slowdown is None


def test_a_busy_host_does_not_make_the_decodes_slow() -> None:
    """One of the first steps takes long, and then one in ten."""
    pace, machine, step = StepPace(), Machine(), itertools.count()
    takes = machine.takes
    machine.takes = lambda *given: takes(*given) + 0.03 * (next(step) % 10 == 0)  # type: ignore[method-assign]
    found = run(pace, machine, decodes=lambda at: 64, steps=600)
    assert max(count for count, *_ in found) <= machine.most(64, 0, 1.5, 1000) + 32
    assert sum(slower > 1.5 for *_, slower in found) <= 80, "more than those and a few attempts"


@pytest.mark.parametrize(("behind", "measured"), [(None, True), ((4, 0, 0), True), ((4, 9, 0), False)])
def test_decodes_are_not_measured_while_a_prompt_is_launched(
    behind: tuple[int, int, int] | None, measured: bool
) -> None:
    pace = StepPace(factor=1.5)
    for _ in range(PLAIN_LEAST):
        pace.observe(step_of(4, 0, 0), 0, 0.1, behind and step_of(*behind))
    assert (pace.prompt_tokens(4, 0, 512) > 0) is measured


@pytest.mark.parametrize(
    ("depth", "stages", "kind"),
    [
        (1, 1, {}),
        *soak((1, 2, {}), (1, 1, {"speculate": "ngram", "draft_tokens": 1}), (0, 1, {}), (1, 4, {})),
    ],
    ids=["overlapped", "two stages", "drafts", "one by one", "four stages"],
)
def test_replies_beside_a_long_prompt_keep_their_pace(depth: int, stages: int, kind: dict[str, Any]) -> None:
    """In an engine, whose clock is the machine's, once a first prompt has been there to learn from.

    The replies are the same as without a limit. Those that wait for their tokens are not in every step; no
    step has only prompts meanwhile.
    """
    slower, replies = {}, {}
    for factor in (None, 1.5):
        clock, machine = Clock(), Machine(jump=0.02, graphs=64)
        engine = ledger_engine(slots=10, blocks=800, context=4096, step_tokens=512, depth=depth, clock=clock)
        engine.runner = Timed(engine.runner, clock, machine, stages)
        engine.scheduler.pace.limit(factor)
        engine.scheduler.rules.stages = stages
        usual = SamplingParams(max_tokens=400, ignore_eos=True, seed=1, **kind)
        outputs, whys = [Stamped(clock) for _ in range(10)], list[str]()
        for output in outputs[:8]:
            engine.submit([1, 2, 3], usual, output)
        for token, output in enumerate(outputs[8:]):
            for _ in range(20):
                engine.step()
            sent = clock()
            id = engine.submit([token] * 2500, usual.changed(max_tokens=5), output)
            while not output.tokens:
                engine.step()
                if engine.scheduler.step % 10 == 0:
                    whys += [each.why for each in engine.snapshot().requests if each.id == id]
            engine.scheduler.check()
        gaps = np.diff([each for each in outputs[0].times if each >= sent])
        slower[factor] = float(np.quantile(gaps, 0.99)) / machine.plain(8)
        assert (engine.snapshot().prompt_limit > 0) is (factor is not None)
        assert any("slow down at most 1.5 times" in why for why in whys) is (factor is not None)
        drain(engine)
        replies[factor] = [output.tokens for output in outputs]
    assert slower[1.5] <= 1.5 < 3 < slower[None]
    assert len(gaps) < 2500 / LEAST
    assert replies[None] == replies[1.5]


class Stamped(Output):
    """A sink that notes when each token arrives."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.times = clock, list[float]()

    def __call__(self, delta: Delta) -> None:
        super().__call__(delta)
        self.times += [self.clock()] * len(delta.tokens)


class Timed:
    """A runner whose steps run one after another, each as long as the machine takes, in equal stages."""

    def __init__(self, runner: LedgerRunner, clock: Clock, machine: Machine, stages: int) -> None:
        self._runner, self._clock, self._machine = runner, clock, machine
        self._free = [0.0] * stages  # when each stage has run all steps launched so far

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, step: Step) -> tuple[StepResult, float, float]:
        result, began = self._runner.launch(step), self._clock()
        rows = step.rows.numbers[step.single :]
        start, count = rows[0, 2:4].tolist() if len(rows) else (0, 0)
        seconds = self._machine.takes(step.tokens - step.prefill, count, start)
        ends = began
        for stage, free in enumerate(self._free):
            ends = self._free[stage] = max(free, ends) + seconds / len(self._free)
        return result, began, ends

    def collect(self, handle: tuple[StepResult, float, float]) -> StepResult:
        result, began, ends = handle
        self._clock.now = max(self._clock.now, ends)
        return replace(result, seconds=self._clock.now - began)
