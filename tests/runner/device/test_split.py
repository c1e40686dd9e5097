"""The parts of a launch on a CPU, measured only while a client asks for them."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api.params import SamplingParams
from engine.execution.changes import UseGraphs
from engine.execution.runner import ModelRunner
from engine.execution.split import LAUNCH, SAMPLING, Clocked, StepSplitter
from engine.serving.engine import Engine
from tests.runner.small import alone, ask, drain, engine_on

PROMPT = list(range(3, 60))
WARM = SamplingParams(temperature=0.8, seed=1, max_tokens=24)


def clocks(engine: Any) -> int:
    return sum(isinstance(each, Clocked) for each in engine.runner.model.modules())


def split_with(engine: Engine, **clocks: Callable[[], float]) -> None:
    """Let the engine measure with these clocks."""
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    runner.splitter = StepSplitter(runner.model, **clocks)


def test_attention_products_and_sampling_are_timed_separately(llama: Path) -> None:
    engine = engine_on(llama)
    ask(engine, PROMPT, WARM)
    drain(engine)
    assert engine.snapshot().split is None and clocks(engine) == 0, "timed without a request for it"
    readings = count()
    split_with(engine, clock=lambda: 0.0, timer=lambda: float(next(readings)))
    engine.runner.speeds()
    _, output = ask(engine, PROMPT, WARM)
    drain(engine)
    found = engine.snapshot().split
    assert found is not None and all(seconds > 0 for seconds in found)
    assert sum(found[:LAUNCH]) < found.launch < next(readings), "a part is counted twice"
    assert clocks(engine) > 0 and len(output.tokens) == 24
    engine.runner.apply(UseGraphs(None))
    assert clocks(engine) == 0, "the model is not restored before a change"
    assert output.tokens == alone(llama, PROMPT, WARM).tokens


def test_each_clock_measures_its_own_part(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First with a clock that only attention advances, then with one that only the products advance."""
    now = [0.0]
    engine = engine_on(llama, prefix_cache=False)
    split_with(engine, clock=lambda: 0.0, timer=lambda: now[0])
    runner: Any = engine.runner
    backend, model = runner.attention, runner.model
    layers, attend = len(runner.store.layers), backend.attend

    def slow(*given: Any) -> Any:
        now[0] += 1.0
        return attend(*given)

    monkeypatch.setattr(backend, "attend", slow, raising=False)
    runner.splitter.ask()
    ask(engine, PROMPT, WARM)
    drain(engine)
    runner.splitter.begin()
    assert runner.split() == pytest.approx((layers, 0.0, 0.0, layers))
    monkeypatch.setattr(backend, "attend", attend, raising=False)
    runner.splitter.forget()
    head = model.head

    class SlowHead(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("matrix", torch.zeros(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            now[0] += 3.0
            out: torch.Tensor = head(x)
            return out

    monkeypatch.setattr(model, "head", SlowHead())
    ask(engine, PROMPT, WARM)
    drain(engine)
    runner.splitter.begin()
    assert runner.split() == pytest.approx((0.0, 3.0, 0.0, 3.0))
    runner.splitter.forget()


def test_a_slow_first_step_is_not_counted() -> None:
    """The device may be measured beside it."""
    now, model = 0.0, torch.nn.Linear(2, 2)
    splitter = StepSplitter(model, clock=lambda: 0.0, timer=lambda: now)  # type: ignore[arg-type]
    splitter.ask()
    splitter._clocked = [(model, "none", Clocked(torch.nn.Linear(2, 2), splitter))]
    for seconds in (20.0, 1.0, 3.0):
        splitter.begin()
        with splitter.clock(LAUNCH), splitter.clock(SAMPLING):
            now += seconds
    splitter.begin()
    assert splitter.means == (0.0, 0.0, 2.0, 2.0)


def test_the_clocks_are_removed_when_no_longer_asked_for(llama: Path) -> None:
    engine, now = engine_on(llama), 0.0
    split_with(engine, clock=lambda: now)
    engine.runner.speeds()
    ask(engine, PROMPT, WARM)
    drain(engine)
    assert clocks(engine) > 0
    now = 60.0
    ask(engine, PROMPT, WARM)
    drain(engine)
    assert clocks(engine) == 0 and engine.snapshot().split is None
