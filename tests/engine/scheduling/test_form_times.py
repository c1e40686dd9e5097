"""The engine keeps the usual time of a step for each form of weights and cache that it has run in."""

from dataclasses import replace
from typing import Any

import pytest

from engine.api.params import SamplingParams
from engine.api.snapshot import FormTime
from engine.execution.protocol import StepResult
from engine.fleet.merged import merged, replica_view
from engine.scheduling.step import Step
from engine.serving.engine import Engine
from engine.serving.form_times import FormTimes
from tests.engine.ledger import Clock, LedgerRunner, drain, ledger_engine
from tests.outputs import Output


class Timed:
    """Runs one step at a time, which takes `seconds`; with drafts a tenth, so that counting it would show."""

    weights_scheme = "none"

    def __init__(self, runner: LedgerRunner, clock: Clock) -> None:
        self._runner, self._clock, self.seconds, self.compiled = runner, clock, 0.0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, step: Step) -> tuple[StepResult, float, float]:
        return self._runner.launch(step), self._clock(), self.seconds / (10 if step.drafts else 1)

    def collect(self, handle: tuple[StepResult, float, float]) -> StepResult:
        result, began, takes = handle
        self._clock.now += takes
        return replace(result, seconds=self._clock.now - began, compiled=self.compiled)


def timed_engine(depth: int = 0) -> Engine:
    clock = Clock()
    engine = ledger_engine(slots=64, blocks=800, step_tokens=512, depth=depth, clock=clock)
    engine.runner = Timed(engine.runner, clock)
    return engine


def run(engine: Engine, seconds: float, *, rows: int = 1, tokens: int = 10, **params: Any) -> None:
    engine.runner.seconds = seconds
    for _ in range(rows):
        usual = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=1, **params)
        engine.submit([1, 2, 3], usual, Output())
    drain(engine)


@pytest.mark.parametrize("depth", [0, 1])
def test_forms_that_were_left_keep_their_times(depth: int) -> None:
    engine = timed_engine(depth)
    assert engine.snapshot().form_times == ()
    run(engine, 0.012)
    engine.runner.weights_scheme = "int8"
    run(engine, 0.009)
    engine.scheduler.kv.kv_scheme = "int4"
    run(engine, 0.010)
    shot = engine.snapshot()
    found = {each[:2]: each.seconds for each in shot.form_times}
    assert found == pytest.approx({("none", "none"): 0.012, ("int8", "none"): 0.009, ("int8", "int4"): 0.010})
    assert all((each.rows, each.most) == (1, 1) and each.steps >= 7 for each in shot.form_times)
    assert shot.form_times[0][:2] == ("int8", "int4"), "the newest first"
    assert shot.form_time("int4", "int4") is None
    assert shot.ended("it died").form_times == (), "another engine measures again"


def test_rows_count_in_classes_of_which_the_newest_is_shown() -> None:
    engine = timed_engine()
    for rows in (1, 2, 8, 9, 40):
        run(engine, 0.010 + 0.001 * rows, rows=rows)
    found = {each[2:4]: each for each in engine.snapshot().form_times}
    assert found.keys() == {(1, 1), (2, 8), (9, 32), (33, 128)}
    usual = engine.snapshot().form_time("none", "none")
    assert usual is not None and (usual.rows, usual.seconds) == (33, pytest.approx(0.050))
    run(engine, 0.010)
    usual = engine.snapshot().form_time("none", "none")
    assert usual is not None and usual.rows == 1


def test_a_class_has_no_limit_beyond_128_rows() -> None:
    times = FormTimes()
    for rows in (128, 129, 5000):
        times.observe("none", "none", rows, rows / 1000)
    assert times.view() == (
        FormTime("none", "none", 129, 0, 0.129, 2),
        FormTime("none", "none", 33, 128, 0.128, 1),
    )


def test_stalls_do_not_count_and_old_steps_are_forgotten() -> None:
    times = FormTimes()
    for at in range(100):
        times.observe("none", "none", 1, 5.0 if at % 2 else 0.012)
    assert times.view() == (FormTime("none", "none", 1, 1, 0.012, 31),)
    for _ in range(31):
        times.observe("none", "none", 1, 0.020)
    assert times.view() == (FormTime("none", "none", 1, 1, 0.020, 31),)
    times.forget()
    assert times.view() == ()


def test_steps_with_prompts_with_drafts_or_compiled_ones_do_not_count() -> None:
    engine = timed_engine()
    run(engine, 0.012, tokens=1)
    assert engine.snapshot().form_times == (), "a prompt alone"
    engine.runner.compiled = True
    run(engine, 0.5)
    assert engine.snapshot().form_times == ()
    engine.runner.compiled = False
    run(engine, 0.012, tokens=200, speculate="draft", draft_tokens=2)
    shot = engine.snapshot()
    assert shot.speculation.drafted > 40
    assert [each.seconds for each in shot.form_times] == pytest.approx([0.012])


def test_a_step_that_waits_for_the_launch_of_a_prompt_does_not_count() -> None:
    """At depth 1 a prompt of another request is launched while the step before it runs."""
    engine = timed_engine(depth=1)
    engine.runner.seconds = 0.012
    usual = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
    engine.submit([1, 2, 3], usual, Output())
    for _ in range(20):
        engine.step()
    before = engine.snapshot().form_times[0].steps
    engine.submit([4, 5, 6], usual.changed(max_tokens=1), Output())
    engine.step()  # commits a step of one row, behind which is the prompt
    assert engine.snapshot().form_times[0].steps == before


def test_a_fleet_shows_means_and_the_class_of_its_busiest_replica() -> None:
    slow, busy = timed_engine(), timed_engine()
    run(slow, 0.030)
    run(busy, 0.010)
    run(busy, 0.020, rows=4)
    shots = [each.snapshot() for each in (slow, busy)]
    shots[1] = replace(shots[1], rates=replace(shots[1].rates, decode=9.0 + shots[0].rates.decode))
    shot = merged(shots, [replica_view(at, each, 0, silent=False) for at, each in enumerate(shots)])
    assert [each.rows for each in shot.form_times] == [2, 1]
    one = shot.form_times[1]
    parts = [each for shot in shots for each in shot.form_times if each.rows == 1]
    assert one.steps == sum(each.steps for each in parts) > 14
    assert one.seconds == pytest.approx(sum(each.seconds * each.steps for each in parts) / one.steps)
