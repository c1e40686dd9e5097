"""The warm-up runs steps of every kind, gives way to requests, and leaves nothing behind."""

from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.events import (
    AdapterChanged,
    BlocksSent,
    Event,
    Finished,
    Quantized,
    Recached,
    TierProblem,
)
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.api.wire import encode_snapshot
from engine.execution.protocol import RARE, StepKind
from engine.serving.engine import Engine
from engine.serving.warm_up import WarmUp
from engine.speculation.gain import Prices
from tests.engine.ledger import alone, ledger_engine
from tests.examples import examples
from tests.outputs import Output

SIZES = (1, 2, 4, 8)


@dataclass
class Compiling:
    """Is done after `steps` calls."""

    steps: int
    error: str = ""

    def wait(self, seconds: float | None = None) -> bool:
        self.steps -= 1
        if self.error and self.steps < 0:
            raise RuntimeError(self.error)
        return self.steps < 0


def run(engine: Engine, warm_up: WarmUp, most: int = 2000) -> None:
    for _ in range(most):
        warm_up.step()
        engine.scheduler.check()
        if warm_up.share == 1 and not engine.busy:
            return
    raise AssertionError(f"not done after {most} steps")


USUAL, FILTERED = (
    [StepKind(size, 0, filtered, long) for size, long in product(SIZES, [False, True])]
    for filtered in (False, True)
)
EARLY = [kind for kind in USUAL if kind.long]
LATE = [kind for kind in USUAL if not kind.long]  # those can hold these steps
FULL = [StepKind(1, tokens - 1, long=True, pieces=True) for tokens in (64, 256)]
PIECES = (16, 32, 48, 64, 80, 96, 112)  # with 64 tokens in a step
PROMPTS = [StepKind(0, size, pieces=True) for size in PIECES]
BESIDE = [StepKind(1, size - 1, long=long, pieces=True) for size in PIECES for long in (False, True)]
HOLDING = [*PROMPTS, *(kind for kind in BESIDE if kind.long)]  # those can hold the others
WAITING = [StepKind(0, size, pieces=True, waits=True) for size in PIECES]


@pytest.mark.parametrize("depth", [0, 1])
def test_long_prompts_run_and_usual_graphs_are_captured_before_requests(depth: int) -> None:
    engine = ledger_engine(depth=depth, slots=8, step_tokens=256)
    run(engine, WarmUp(engine, SIZES))
    steps = engine.runner.steps
    prompts = {step.tokens for step in steps if len(step.rows) == 1 and step.single == 0}
    assert prompts >= {64, 128, 256}
    assert any(step.targets for step in steps), "a prompt whose log-probabilities are returned"
    beside = {step.tokens for step in steps if len(step.rows) == 2 and step.single == 1}
    assert max(beside) == 256
    captured = engine.runner.captured
    assert [kind for _, kind in captured] == [FULL[1], *EARLY]
    first = next(steps for steps, kind in captured if kind in EARLY)
    assert any(step.single == len(step.rows) for step in steps[:first]), "captures need a step that ran"


@pytest.mark.parametrize(("factor", "rarer"), [(None, []), (1.5, BESIDE)])
def test_an_idle_engine_captures_graphs_of_rarer_steps_one_at_a_time(
    factor: float | None, rarer: list[StepKind]
) -> None:
    engine = ledger_engine(slots=8, step_tokens=64)
    engine.scheduler.pace.limit(factor)
    warm_up, captured = WarmUp(engine, SIZES), engine.runner.captured
    run(engine, warm_up)
    steps = len(engine.runner.steps)
    counts = [len(captured)]
    while not warm_up.over:
        assert warm_up.share == 1
        warm_up.step()
        counts.append(len(captured))
    assert [kind for _, kind in captured] == FULL[:1] + EARLY + HOLDING + LATE + FILTERED + WAITING + rarer
    assert {*engine.runner.compiled} >= {*PROMPTS, *BESIDE, *WAITING}
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert len(engine.runner.steps) == steps


def test_sizes_with_a_larger_graph_are_captured_when_idle() -> None:
    engine, sizes = ledger_engine(slots=24, step_tokens=64), (1, 2, 4, 8, 16, 24)
    warm_up, captured = WarmUp(engine, sizes), engine.runner.captured
    run(engine, warm_up)
    late = [StepKind(16, 0, filtered, long) for filtered, long in product([False, True], [False, True])]
    early = [kind for _, kind in captured if not kind.pieces]
    assert {(kind.rows, kind.long) for kind in early} == {(size, True) for size in (1, 2, 4, 8, 24)}
    assert not {*engine.runner.compiled} & {*late}
    while not warm_up.over:
        warm_up.step()
    assert {kind for _, kind in captured} >= {*late} and {*engine.runner.compiled} >= {*late}


def test_sizes_with_a_larger_graph_are_compiled_with_the_others_if_a_start_compiles_at_all() -> None:
    for steps, compiles in ((20, False), (30, True)):
        engine = ledger_engine(slots=24, step_tokens=64)
        engine.runner.compilations = [Compiling(steps)]
        run(engine, WarmUp(engine, (1, 2, 4, 8, 16, 24)))
        assert (StepKind(16, 0, False, True) in engine.runner.compiled) is compiles, "loading takes less"


def test_an_idle_engine_captures_graphs_of_steps_with_adapters_once_one_is_loaded() -> None:
    engine = ledger_engine(slots=8, step_tokens=64)
    warm_up, captured = WarmUp(engine, SIZES), engine.runner.captured
    run(engine, warm_up)
    while not warm_up.over:
        warm_up.step()
    before, wanted = len(captured), [kind._replace(adapted=True) for kind in USUAL]
    for loaded in (False, True):
        engine.bus.emit(AdapterChanged(0, 0.0, "a", loaded))
        assert warm_up.over is not loaded and warm_up.share == 1
    while not warm_up.over:
        warm_up.step()
    assert [kind for _, kind in captured[before:]] == wanted
    assert {*engine.runner.compiled} >= {*wanted}


def test_requests_come_before_graphs_of_rarer_steps() -> None:
    engine, reply = ledger_engine(slots=8, step_tokens=64), Output()
    warm_up, captured = WarmUp(engine, SIZES), engine.runner.captured
    run(engine, warm_up)
    warm_up.step()
    warm_up.step()
    before, finished = len(captured), list[Event]()
    engine.bus.subscribe(finished.append)
    engine.submit([1, 2], SamplingParams(max_tokens=3, seed=0), reply)
    while engine.busy:
        warm_up.step()
    assert reply.tokens == alone([1, 2], 3)
    assert any(type(event) is Finished for event in finished)
    assert len(captured) == before < len(USUAL + FILTERED)
    cached = engine.snapshot().blocks.cached
    while not warm_up.over:
        warm_up.step()
    assert {kind for _, kind in captured} == {FULL[0], *HOLDING, *USUAL, *FILTERED, *WAITING}
    assert engine.snapshot().blocks.cached == cached
    assert engine.meters.finished == 1


def test_a_graph_that_cannot_be_captured_does_not_end_the_warm_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ledger_engine()

    def fails(kinds: object) -> None:
        raise RuntimeError("no stream")

    monkeypatch.setattr(engine.runner, "capture", fails)
    warm_up = WarmUp(engine, SIZES)
    run(engine, warm_up)
    while not warm_up.over:
        warm_up.step()
    assert "no stream" in caplog.text


def test_its_parts_have_names() -> None:
    engine = ledger_engine(slots=8, step_tokens=64)
    warm_up, names = WarmUp(engine, SIZES), ["compile"]
    while names[-1]:
        warm_up.step()
        names.append(warm_up.part)
    before = ["prompt", "capture", "prompt_beside_a_row", "prompt", "capture", "prompt", "draft", "measure"]
    parts = [*before, *["compile", "capture"] * 2, ""]
    assert [name for name, _ in groupby(names)] == ["compile", *parts]


def test_a_draft_model_drafts_before_requests_and_what_that_took_is_forgotten() -> None:
    """Its first steps take as long as the compiler, so drafts would seem to lose."""
    engine = ledger_engine(slots=8, step_tokens=64)
    run(engine, WarmUp(engine, SIZES))
    drafted = {each.length for step in engine.runner.steps for each in step.drafts.values()}
    assert drafted >= {1, 2, 4, 8}
    total = engine.scheduler.speculator.total()
    assert (total.verifications, total.drafted, total.accepted) == (0, 0, 0)
    assert engine.scheduler.speculator.prices.of("draft", 1) == Prices().of("draft", 1)


def test_events_of_other_requests_pass_while_an_idle_engine_prepares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blocks of a request may be sent, or a tier fail, after it has ended."""
    engine = ledger_engine(slots=8, step_tokens=64)
    warm_up, other, found = WarmUp(engine, SIZES), Output(), list[Event]()
    run(engine, warm_up)
    engine.bus.subscribe(found.append)
    request = engine.submit([1, 2], SamplingParams(max_tokens=3, seed=0), other)
    while engine.busy:
        warm_up.step()
    sent, problem = BlocksSent(9, 0.0, request, 2, "gpu"), TierProblem(9, 0.0, "host", "full")
    step = engine.step

    def ends_a_copy() -> bool:
        for each in (sent, problem):
            engine.bus.emit(each)
        return step()

    monkeypatch.setattr(engine, "step", ends_a_copy)
    assert not warm_up.over
    warm_up.step()
    assert found[-2:] == [sent, problem]


def test_events_of_its_own_requests_are_hidden() -> None:
    engine, found = ledger_engine(slots=8, step_tokens=64), list[Event]()
    engine.bus.subscribe(found.append)
    run(engine, WarmUp(engine, SIZES))
    assert engine.runner.steps and not found


def test_an_engine_without_a_draft_model_drafts_nothing_before_requests() -> None:
    engine = ledger_engine(slots=8, step_tokens=64)
    engine.limits = replace(engine.limits, speculation=("ngram", "suffix"))
    run(engine, WarmUp(engine, SIZES))
    assert not any(step.drafts for step in engine.runner.steps)


def test_kernels_are_compiled_before_the_first_step() -> None:
    engine = ledger_engine(slots=8, step_tokens=64)
    warm_up = WarmUp(engine, SIZES)
    while not engine.runner.steps:
        warm_up.step()
    compiled = set(engine.runner.compiled)
    run(engine, warm_up)
    eager = [kind for kind in compiled if kind.prompt and not kind.pieces]
    sizes = {(kind.rows > 0, (kind.rows + kind.prompt - 1).bit_length()) for kind in eager}
    steps = [step for step in engine.runner.steps if not step.drafts]
    alone = {step.tokens for step in steps if len(step.rows) == 1 and not step.single}
    assert {kind.prompt for kind in compiled if kind.pieces and not kind.rows} == alone, (
        "the graphs that it runs"
    )
    for step in steps:
        assert step.single == len(step.rows) or (step.single > 0, (step.tokens - 1).bit_length()) in sizes
    assert compiled >= {kind for kind in (*USUAL, *FILTERED) if kind.long}
    assert {(kind.rows, kind.sampling) for kind in compiled if kind.sampling} == {*product((0, 1), RARE)}
    while not warm_up.over:
        warm_up.step()
    assert {*engine.runner.compiled} >= {*USUAL, *FILTERED}


def test_a_kernel_that_does_not_compile_does_not_end_the_warm_up(caplog: pytest.LogCaptureFixture) -> None:
    engine = ledger_engine()
    engine.runner.compilations = [Compiling(steps=2, error="ptxas is not there")]
    run(engine, WarmUp(engine, SIZES))
    assert "ptxas is not there" in caplog.text
    assert engine.runner.steps


def test_requests_do_not_wait_for_the_compiler() -> None:
    engine, reply = ledger_engine(), Output()
    engine.runner.compilations = [Compiling(steps=10), Compiling(steps=50)]
    warm_up = WarmUp(engine, SIZES)
    for _ in range(5):
        warm_up.step()
    assert not engine.runner.steps
    engine.submit([1, 2], SamplingParams(max_tokens=3, seed=0), reply)
    while engine.busy:
        warm_up.step()
    assert reply.tokens == alone([1, 2], 3)
    assert not engine.runner.compilations[0].wait()
    run(engine, warm_up)
    assert len(set(engine.runner.compiled)) < len(engine.runner.compiled), "they are compiled again"


def test_it_fits_in_a_small_cache() -> None:
    engine = ledger_engine(blocks=8, slots=8, step_tokens=64)
    run(engine, WarmUp(engine, SIZES))
    assert engine.scheduler.preemptions == 0


def test_nothing_is_left_behind() -> None:
    engine, events = ledger_engine(depth=1), list[Event]()
    engine.bus.subscribe(events.append)
    run(engine, WarmUp(engine, SIZES))
    shot, fresh = engine.snapshot(), ledger_engine(depth=1).snapshot()
    assert (shot.blocks.in_use, shot.blocks.cached) == (0, 0)
    same = replace(shot, at=fresh.at, step=fresh.step, blocks=fresh.blocks)
    assert encode_snapshot(same) == encode_snapshot(fresh)
    assert not events


def test_without_graphs_there_is_nothing_to_do() -> None:
    engine = ledger_engine()
    warm_up = WarmUp(engine, ())
    assert warm_up.share == 1
    assert not warm_up.step()


@examples(15)
@given(
    st.dictionaries(st.integers(0, 150), st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=8),
    st.sampled_from([0, 1]),
)
def test_requests_come_first_and_get_the_same_replies(
    arrivals: dict[int, tuple[int, int]], depth: int
) -> None:
    engine = ledger_engine(depth=depth, blocks=24, step_tokens=32)
    warm_up, asked, ids, finished = WarmUp(engine, SIZES), [], set[int](), list[int]()
    engine.bus.subscribe(lambda event: finished.append(event.request) if type(event) is Finished else None)
    for number in range(4000):
        if number in arrivals:
            length, count = arrivals[number]
            reply, prompt = Output(), [number % 7] * length
            ids.add(engine.submit(prompt, SamplingParams(max_tokens=count, ignore_eos=True, seed=0), reply))
            asked.append((prompt, count, reply))
        busy = any(reply.finish is None for _, _, reply in asked)
        warm_up.step()
        assert not busy or {each.id for each in engine.scheduler.requests.values()} <= ids
        engine.scheduler.check()
        if warm_up.share == 1 and not engine.busy and number > 150:
            break
    assert warm_up.share == 1
    assert sorted(finished) == sorted(ids), "only the events of requests are seen"
    for prompt, count, reply in asked:
        assert (reply.tokens, reply.finish) == (alone(prompt, count), Finish.LENGTH)


def test_a_step_that_fails_does_not_stop_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    engine = ledger_engine()
    engine.runner.fails = lambda step: step.tokens == 64
    run(engine, WarmUp(engine, SIZES))
    assert "a step of the warm-up failed" in caplog.text
    reply = Output()
    engine.submit([1, 2], SamplingParams(max_tokens=3, seed=0), reply)
    while engine.busy:
        engine.step()
    assert reply.tokens == alone([1, 2], 3)


def test_a_warm_up_that_is_refused_ends_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    engine = ledger_engine()
    engine.limits = replace(engine.limits, waiting=0)
    run(engine, WarmUp(engine, SIZES))
    assert "the warm-up ended early" in caplog.text
    assert engine.outputs.alive == 0


def test_the_engine_of_a_screen_compiles_what_a_first_message_needs_while_it_is_idle() -> None:
    engine = ledger_engine(slots=8, step_tokens=256)
    warm_up, runner = WarmUp(engine, SIZES, whole=False), engine.runner
    assert warm_up.share == 1, "it is ready"
    assert not warm_up.over
    output = Output()
    engine.submit([1] * 5, SamplingParams(max_tokens=2, ignore_eos=True), output)
    while engine.busy:
        warm_up.step()
        assert not runner.compiled, "a request comes first"
    while not warm_up.over:
        warm_up.step()
    order = [*runner.compiled]
    assert {*order} >= {StepKind(0, 16), StepKind(0, 256), StepKind(1), StepKind(1, long=True)}
    assert order.index(StepKind(1, 16)) > order.index(StepKind(0, 256)), "a second chat comes later"
    assert {*order} >= {StepKind(2), StepKind(4, long=True)} and StepKind(8) not in order
    assert not runner.captured and len(output.tokens) == 2
    assert engine.snapshot().finished == 1, "it has sent no requests of its own"


def test_an_idle_engine_compiles_them_again_after_a_conversion() -> None:
    engine = ledger_engine(slots=8, step_tokens=256)
    warm_up = WarmUp(engine, SIZES, whole=False)
    while not warm_up.over:
        warm_up.step()
    engine.bus.emit(Quantized(0, 0.0, "int8", "none", 8, 0.1, "no room"))
    assert warm_up.over, "a conversion that failed changed nothing"
    for event in (Quantized(0, 0.0, "int8", "none", 8, 0.1, ""), Recached(0, 0.0, "int8", 8)):
        engine.runner.compiled.clear()
        engine.bus.emit(event)
        while not warm_up.over:
            warm_up.step()
        assert StepKind(1) in engine.runner.compiled
