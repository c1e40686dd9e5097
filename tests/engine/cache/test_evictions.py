"""Evictions of cached blocks are reported with the request that needed the space, before it ends."""

import pytest

from engine.api.events import Event, Evicted, Finished, Preempted
from engine.api.params import SamplingParams
from engine.serving.engine import Engine
from tests.engine.ledger import Clock, drain, ledger_engine
from tests.outputs import Output


def watched(engine: Engine) -> list[Event]:
    events = list[Event]()
    engine.bus.subscribe(events.append)
    return events


def ask(engine: Engine, token: int, *, prompt: int = 70, tokens: int = 4) -> int:
    return engine.submit([token] * prompt, SamplingParams(max_tokens=tokens, seed=0), Output())


def evicted(events: list[Event], request: int | None = None) -> list[int]:
    found = [event for event in events if isinstance(event, Evicted)]
    return [event.blocks for event in found if request is None or event.request == request]


@pytest.mark.parametrize("apart", [0.0, 0.3, 60.0])
def test_each_reply_reports_what_it_evicted_before_it_ends(apart: float) -> None:
    clock = Clock()
    engine = ledger_engine(blocks=12, slots=2, clock=clock)
    events, pool = watched(engine), engine.scheduler.pool
    for token in range(8):
        clock.now += apart
        before = pool.evictions
        request = ask(engine, token, tokens=60)
        drain(engine)
        assert sum(evicted(events, request)) == pool.evictions - before
        assert isinstance(events[-1], Finished), "the last ones came after the end"
    assert sum(evicted(events)) == pool.evictions > 20
    assert {event.at for event in events if isinstance(event, Evicted)} <= {event.at for event in events}


def test_the_first_are_reported_in_their_step() -> None:
    engine = ledger_engine(blocks=12, slots=2, clock=Clock())
    for token in range(3):
        ask(engine, token)
        drain(engine)
    events, before = watched(engine), engine.scheduler.pool.evictions
    request = ask(engine, 9)
    engine.step()
    assert evicted(events, request) == [engine.scheduler.pool.evictions - before] != [0]


@pytest.mark.parametrize(("rows", "most"), [(1, 5), (4, 4 + 4 + 5)])
def test_a_full_cache_reports_about_one_more_a_second(rows: int, most: int) -> None:
    """However many requests run: it evicts in every step."""
    clock = Clock()
    engine = ledger_engine(blocks=48, slots=4, clock=clock)
    for token in range(12):
        ask(engine, token)
        drain(engine)
    events, before = watched(engine), engine.scheduler.pool.evictions
    for token in range(rows):
        ask(engine, 100 + token, prompt=20, tokens=100)
    began = clock.now
    while engine.busy:
        engine.step()
        clock.now += 0.04
    assert 4 <= clock.now - began <= 5
    assert 3 <= len(evicted(events)) <= most, "of each the first, the last, and one a second"
    assert sum(evicted(events)) == engine.scheduler.pool.evictions - before > 4 * rows


def test_what_a_preempted_request_evicted_is_reported_before() -> None:
    engine = ledger_engine(blocks=12, slots=2, clock=Clock())
    for token in range(3):
        ask(engine, token)
        drain(engine)
    events, before = watched(engine), engine.scheduler.pool.evictions
    request = ask(engine, 9, prompt=20, tokens=60)
    for _ in range(40):
        engine.step()
    count = engine.scheduler.pool.evictions - before
    assert count > sum(evicted(events)) > 0, "some are held back"
    engine.preempt(request)
    while not any(isinstance(event, Preempted) for event in events):
        engine.step()
    at = next(at for at, event in enumerate(events) if isinstance(event, Preempted))
    assert sum(evicted(events[:at], request)) == count
