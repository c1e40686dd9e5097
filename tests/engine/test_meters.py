"""Rates of steps, by a clock that the test turns."""

import numpy as np
import pytest

from engine.api.snapshot import Throughput
from engine.scheduling.step import Rows, Step, StepRow
from engine.serving.meters import Meters


def fed(*ends: float, takes: float, rows: int = 2) -> Meters:
    """Steps of so many decodes."""
    meters = Meters()
    for step, at in enumerate(ends):
        row_of = [StepRow(each, each, 10, 1, True) for each in range(rows)]
        one = Step(step, Rows.of(row_of), np.zeros(rows, np.int64), rows)
        meters.step(at, one, 0, (0.0, takes / 2, takes / 2, 0.0))
    return meters


def test_work_that_has_just_begun_is_not_diluted() -> None:
    rates = fed(10.1, 10.2, 10.3, takes=0.1).rates(10.3)
    assert (rates.steps, rates.decode, rates.batch) == (pytest.approx(10), pytest.approx(20), 2)


def test_a_second_of_it_is_enough() -> None:
    rates = fed(*(10 + each / 10 for each in range(1, 51)), takes=0.1).rates(15.0)
    assert rates.steps == pytest.approx(10)


def test_steps_of_several_seconds_are_few_a_second() -> None:
    assert fed(13.0, 16.0, takes=3.0).rates(16.0).steps == pytest.approx(1 / 3)


def test_a_single_short_step_does_not_promise_too_much() -> None:
    assert fed(10.0, takes=0.001).rates(10.0).steps == pytest.approx(20)


def test_they_sink_when_it_is_over_and_end() -> None:
    meters = fed(10.1, 10.2, takes=0.1)
    assert meters.rates(10.4).steps == pytest.approx(5)
    assert meters.rates(11.3) == Throughput()
