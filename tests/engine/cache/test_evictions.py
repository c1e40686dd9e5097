"""Evictions of cached blocks are all reported, at most once a second."""

from engine.api.events import Event, Evicted
from engine.api.params import SamplingParams
from tests.engine.ledger import Clock, drain, ledger_engine
from tests.outputs import Output


def test_evictions_are_reported_once_a_second_and_add_up() -> None:
    clock, events = Clock(), list[Event]()
    engine = ledger_engine(blocks=12, slots=2, clock=clock)
    engine.bus.subscribe(events.append)

    def reported() -> list[int]:
        return [event.blocks for event in events if isinstance(event, Evicted)]

    def ask(token: int) -> None:
        engine.submit([token] * 70, SamplingParams(max_tokens=4, seed=0), Output())
        drain(engine)

    ask(1)
    ask(2)
    assert reported() == [], "both prompts fit into the cache"
    for token in range(3, 9):
        clock.now += 0.3
        ask(token)
    assert 2 <= len(reported()) <= 3, "six prompts in two seconds"
    for _ in range(2):  # evictions after the last report are part of the next one
        clock.now += 1
        before = engine.scheduler.pool.evictions
        ask(9)
    assert 20 < before <= sum(reported()) <= engine.scheduler.pool.evictions
