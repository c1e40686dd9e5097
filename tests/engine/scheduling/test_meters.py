"""Rates of steps, measured with a clock that the test sets."""

from typing import Any

import numpy as np
import pytest

from engine.api.params import SamplingParams
from engine.api.snapshot import Throughput
from engine.scheduling.step import Rows, Step, StepRow
from engine.serving.meters import Meters
from tests.engine.ledger import Clock, ledger_engine
from tests.outputs import Outputs


def meters_after(*ends: float, takes: float, rows: int = 2) -> Meters:
    """Return meters after steps of `rows` decodes that end at these times and take `takes` seconds each."""
    meters = Meters()
    for at in ends:
        add_step(meters, at, takes, rows)
    return meters


def add_step(meters: Meters, at: float, takes: float, rows: int = 2, prefill: int = 0) -> None:
    row_of = [StepRow(each, each, 10, 1, True) for each in range(rows)]
    one = Step(0, Rows.of(row_of), np.zeros(rows, np.int64), rows + prefill)
    meters.replied += rows
    meters.step(at, one, prefill, (0.0, takes / 2, takes / 2, 0.0))


def test_rates_at_the_start_are_not_averaged_with_idle_time() -> None:
    rates = meters_after(10.1, 10.2, 10.3, takes=0.1).rates(10.3)
    assert (rates.steps, rates.decode, rates.batch) == (pytest.approx(10), pytest.approx(20), 2)


def test_rates_cover_the_last_second() -> None:
    rates = meters_after(*(10 + each / 10 for each in range(1, 51)), takes=0.1).rates(15.0)
    assert rates.steps == pytest.approx(10)


def test_steps_of_several_seconds_give_less_than_one_a_second() -> None:
    assert meters_after(13.0, 16.0, takes=3.0).rates(16.0).steps == pytest.approx(1 / 3)


def test_a_single_short_step_does_not_give_a_huge_rate() -> None:
    assert meters_after(10.0, takes=0.001).rates(10.0).steps == pytest.approx(20)


def test_rates_fall_to_zero_when_the_steps_end() -> None:
    meters = meters_after(10.1, 10.2, takes=0.1)
    assert meters.rates(10.4).steps == pytest.approx(5)
    assert meters.rates(11.3) == Throughput()


def test_steps_are_counted_by_their_tokens_until_a_reset() -> None:
    meters = meters_after(10.1, 10.2, takes=0.1, rows=3)
    counted = meters.iteration_tokens.view()
    assert dict(zip(counted.bounds, counted.counts, strict=False))[8] == 2
    assert (sum(counted.counts), counted.total) == (2, 6)
    meters.reset()
    assert meters.iteration_tokens.view().total == sum(meters.iteration_tokens.view().counts) == 0


def test_a_pause_of_the_process_is_part_of_the_rates_and_not_of_the_mean_step() -> None:
    """SIGTSTP and fg: the step in flight seems to take as long as the pause."""
    meters = meters_after(10.1, 10.2, takes=0.01)
    add_step(meters, 70.2, takes=60.0)
    assert meters.times().total == pytest.approx(0.01)
    add_step(meters, 70.3, takes=0.01)
    assert meters.times().total == pytest.approx(0.01)
    assert meters.rates(70.3).steps == pytest.approx(2 / 60.1, rel=0.01)
    assert meters.pace() == pytest.approx(100), "none of the time before it"


def test_the_mean_step_and_the_pace_are_of_the_same_steps() -> None:
    """Whatever the newest ones took, and however long the run has been over."""
    for takes in ([0.004] * 200 + [0.02] * 9, [0.02] * 30 + [0.001] * 40, [0.5, 0.01, 0.01]):
        meters, at = Meters(), 10.0
        for each in takes:
            at += each
            add_step(meters, at, each)
        assert meters.times().total * meters.pace() == pytest.approx(1)
        recent = [each for place, each in enumerate(takes) if sum(takes[place + 1 :]) < 1.0]
        assert meters.times().total == pytest.approx(sum(recent) / len(recent))


def test_time_between_the_steps_counts_for_the_pace() -> None:
    meters = meters_after(*(10 + each / 10 for each in range(1, 51)), takes=0.02)
    assert (meters.times().total, meters.pace()) == (pytest.approx(0.02), pytest.approx(10, rel=0.1))


def test_the_pace_of_a_run_has_no_time_before_it() -> None:
    """A short reply is sent soon after another one."""
    meters = meters_after(10.1, 10.2, 10.3, 10.6, 10.65, takes=0.05)
    assert (meters.times().total, meters.pace()) == (pytest.approx(0.05), pytest.approx(20))


def test_steps_that_stay_slow_are_counted_and_so_are_slow_prompts() -> None:
    meters = meters_after(10.1, 10.2, takes=0.01)
    add_step(meters, 12.2, takes=2.0)
    add_step(meters, 14.2, takes=2.0)
    assert meters.times().total == pytest.approx(2.0)
    meters = meters_after(10.1, 10.2, takes=0.01)
    add_step(meters, 10.7, takes=0.5, prefill=4096)
    assert meters.times().total == pytest.approx(0.52 / 3)


@pytest.mark.parametrize(
    "options", [{}, {"speculate": "ngram"}, {"speculate": "ngram", "n": 2}, {"beams": 3}]
)
@pytest.mark.parametrize("depth", [0, 1])
def test_the_decode_rate_is_of_the_tokens_that_replies_get(options: dict[str, Any], depth: int) -> None:
    """Rejected drafts, steps past an end, and all hypotheses but one are work, and no tokens of replies."""
    engine = ledger_engine(clock=Clock(), depth=depth, alphabet=3)
    params = SamplingParams(max_tokens=60, ignore_eos=True, seed=1, draft_tokens=8, **options)
    engine.submit([1, 2, 0, 1, 2, 2, 1, 0, 1, 1], params, output := Outputs())
    while engine.busy:
        engine.step()
        engine.clock.now += 0.005
    rates, got = (
        engine.meters.rates(engine.clock.now),
        sum(len(each.tokens) for each in output.choices.values()),
    )
    assert rates.decode * engine.clock.now == pytest.approx(got, rel=0.02)
    computed = engine.meters.iteration_tokens.view()
    assert rates.step_tokens == pytest.approx(computed.total / sum(computed.counts))
    if "speculate" in options:
        assert computed.total - 10 > 1.1 * got, "no draft was rejected: the test says nothing"


def test_what_steps_attend_to_is_a_mean_over_all_of_them() -> None:
    """A decode behind 99 tokens and four of a prompt behind 20; then two decodes, one with evicted tokens."""
    meters = Meters((0, 8))
    first = [StepRow(0, 0, 99, 1, True), StepRow(1, 1, 20, 4, True)]
    second = [StepRow(0, 0, 100, 1, True), StepRow(1, 1, 24, 1, True, skipped=20)]
    for at, rows in (10.1, first), (10.2, second):
        tokens = sum(row.length for row in rows)
        meters.step(at, Step(0, Rows.of(rows), np.zeros(tokens, np.int64), tokens), 0, (0.0, 0.1, 0.0, 0.0))
    rates = meters.rates(10.2)
    assert rates.contexts == ((0, (100 + 24 + 101 + 5) / 2), (8, (8 + 11 + 8 + 5) / 2))
    assert rates.pairs == ((0, (100 + 21 + 22 + 23 + 24 + 101 + 5) / 2), (8, (8 + 4 * 8 + 8 + 5) / 2))
    assert Meters().rates(10.2).contexts == ()


@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 7), (0, 20), (5, 9), (8, 3), (30, 4)])
def test_the_first_tokens_of_a_prompt_see_less_than_the_window(start: int, length: int) -> None:
    meters, step = Meters((8,)), Rows.of([StepRow(0, 0, start, length, True)])
    meters.step(10.0, Step(0, step, np.zeros(length, np.int64), length), 0, (0.0, 0.1, 0.0, 0.0))
    seen = sum(min(position, 8) for position in range(start + 1, start + length + 1))
    assert meters.rates(10.0).pairs == ((8, seen),)
