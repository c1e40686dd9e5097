"""Rates of steps, measured with a clock that the test sets."""

import numpy as np
import pytest

from engine.api.snapshot import Throughput
from engine.scheduling.step import Rows, Step, StepRow
from engine.serving.meters import Meters


def meters_after(*ends: float, takes: float, rows: int = 2) -> Meters:
    """Return meters after steps of `rows` decodes that end at these times and take `takes` seconds each."""
    meters = Meters()
    for step, at in enumerate(ends):
        row_of = [StepRow(each, each, 10, 1, True) for each in range(rows)]
        one = Step(step, Rows.of(row_of), np.zeros(rows, np.int64), rows)
        meters.step(at, one, 0, (0.0, takes / 2, takes / 2, 0.0))
    return meters


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
