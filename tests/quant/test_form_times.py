"""The engine measures a step of each scheme that it has run in, on the clock of the machine."""

import time
from pathlib import Path

import pytest

from engine.api.params import SamplingParams
from engine.api.snapshot import FormTime
from engine.serving.engine import Engine
from tests.quant.changing import PROMPT, engine_on, switch
from tests.runner.small import ask, drain, run_to

LONG = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)


def seconds_a_step(engine: Engine) -> float:
    """The mean on the wall clock, over the steps that the engine takes its time of a step from."""
    _, output = ask(engine, PROMPT, LONG)
    run_to(engine, output, 16)
    began, before = time.perf_counter(), len(output.tokens)
    drain(engine)
    return (time.perf_counter() - began) / (len(output.tokens) - before)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_form_that_was_left_keeps_what_was_measured(folder: Path, device: str) -> None:
    engine = engine_on(folder, device=device, depth=1)

    def kept() -> FormTime | None:
        found = {(each.weights, each.rows): each for each in engine.snapshot().form_times}
        return found.get(("none", 1))

    mean = seconds_a_step(engine)
    plain = kept()
    assert plain is not None and plain.steps == 31
    assert 0 < plain.seconds <= 1.05 * mean, "a quartile of the same steps"
    switch(engine, "int8")
    assert engine.snapshot().form_time("int8", "none") is None
    seconds_a_step(engine)
    usual = engine.snapshot().form_time("int8", "none")
    assert usual is not None and usual.steps == 31
    assert kept() == plain
    engine.set_kv_scheme("int8")
    seconds_a_step(engine)
    newest = engine.snapshot().form_times[0]
    assert (newest.weights, newest.cache, newest.rows) == ("int8", "int8", 1)
    assert kept() == plain
