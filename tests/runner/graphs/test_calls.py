"""How many functions a decode step calls: the host has to be done before the GPU has finished a step."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from benchmarks.engine import engine_step
from engine.api.params import SamplingParams
from engine.execution.cuda.recording import Recording

STEPS = 32  # each row fills two blocks
MOST = {1: 320, 9: 570}  # by rows. With Python 3.11 and numpy 2.4 it is 304 and 539.


def no_launches(recording: Recording) -> Sequence[Tensor]:
    return ()


@pytest.mark.parametrize("rows", list(MOST))
def test_a_step_calls_few_functions(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_step.empty_engine(rows, 1000, engine_step.Graphed, depth=1)
    engine_step.fill(engine, rows, SamplingParams(temperature=0.6, seed=1, ignore_eos=True))
    engine_step.steps(engine, 4)
    monkeypatch.setattr(Recording, "run", no_launches)
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        engine_step.steps(engine, STEPS)
    finally:
        sys.setprofile(before)
    assert calls / STEPS <= MOST[rows]
