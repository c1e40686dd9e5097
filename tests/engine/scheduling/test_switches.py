"""Switches change how the engine works at any moment, and never change its replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import BadInput
from engine.api.events import Event, Switched
from engine.api.params import SamplingParams
from tests.engine.ledger import alone, drain, ledger_engine
from tests.engine.scheduling.test_company import Job, any_workload, run_workload
from tests.engine.workloads import Workload
from tests.examples import examples
from tests.outputs import Output

NAMES = ("prefix_cache", "chunked_prefill", "overlap")


@examples(15)
@given(
    any_workload,
    st.dictionaries(st.integers(0, 28), st.lists(st.sampled_from(NAMES), min_size=1), max_size=12),
)
def test_switching_at_any_moment_does_not_change_replies(
    work: Workload[Job], toggles: dict[int, list[str]]
) -> None:
    def toggle(engine: object, step: int) -> None:
        for name in toggles.get(step, ()):
            present = {each.name: each.on for each in engine.switches}
            engine.set_switch(name, not present[name])

    run_workload(work, toggle)


def test_a_switch_is_reported_with_its_default() -> None:
    engine, events = ledger_engine(depth=1), list[Event]()
    engine.bus.subscribe(events.append)
    engine.set_switch("overlap", False)
    engine.set_switch("overlap", False)  # already off: no event
    assert [(each.name, each.on) for each in events if isinstance(each, Switched)] == [("overlap", False)]
    assert [(each.name, each.on, each.usual) for each in engine.snapshot().switches] == [
        ("prefix_cache", True, True),
        ("chunked_prefill", True, True),
        ("overlap", False, True),
    ]


def test_switches_take_effect() -> None:
    engine = ledger_engine(step_tokens=16)
    prompt = [7] * 40

    def ask() -> Output:
        reply = Output()
        engine.submit(prompt, SamplingParams(max_tokens=2, seed=0), reply)
        return reply

    def cached() -> int:
        before = engine.scheduler.cached_tokens
        drain(engine)
        return engine.scheduler.cached_tokens - before

    ask()
    drain(engine)
    longest = max(row.length for step in engine.runner.steps for row in step.rows)
    assert longest == 16
    ask()
    assert cached() == 32
    engine.set_switch("prefix_cache", False)
    engine.set_switch("chunked_prefill", False)
    engine.runner.steps.clear()
    ask()
    assert cached() == 0
    assert max(row.length for step in engine.runner.steps for row in step.rows) == 40
    engine.set_switch("prefix_cache", True)
    ask()
    assert cached() == 32


def test_overlap_is_switched_off_with_a_step_in_flight() -> None:
    engine, reply = ledger_engine(depth=1), Output()
    engine.submit([1, 2, 3], SamplingParams(max_tokens=6, seed=0), reply)
    engine.step()
    engine.step()
    assert len(reply.tokens) == 1
    engine.set_switch("overlap", False)
    engine.step()
    assert len(reply.tokens) == 3, "the step in flight and the next one"
    engine.step()
    assert len(reply.tokens) == 4
    drain(engine)
    assert reply.tokens == alone([1, 2, 3], 6, 0)


def test_graphs_are_a_switch_only_if_the_runner_has_them() -> None:
    engine = ledger_engine()
    known = "prefix_cache, chunked_prefill, overlap"
    with pytest.raises(BadInput, match=f"unknown switch 'graphs'; available: {known}"):
        engine.set_switch("graphs", False)
    engine.runner.graphs = True
    engine.set_switch("graphs", False)
    assert engine.runner.graphs is False


def test_a_switch_takes_only_true_and_false() -> None:
    with pytest.raises(BadInput, match="overlap must be True or False, got 1"):
        ledger_engine().set_switch("overlap", 1)
