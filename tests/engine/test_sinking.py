"""Cached blocks are copied to a lower tier before they are evicted, and loaded from there."""

import pytest

from engine.api.events import Event, Transferred
from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.kv.pool import BlockPool
from engine.serving.engine import Engine
from tests.engine.byte_tier import ByteTier
from tests.engine.ledger import alone, drain, ledger_engine
from tests.outputs import Output

LONG = 64  # tokens of a prompt: four blocks


def prompt(first: int) -> list[int]:
    return [first, *range(1, LONG)]


def answer(engine: Engine, first: int, count: int = 2) -> list[int]:
    output = Output()
    engine.submit(prompt(first), SamplingParams(max_tokens=count, seed=0), output)
    while engine.busy:
        engine.step()
        engine.scheduler.check()
    return output.tokens


def computed(engine: Engine) -> int:
    return sum(step.tokens for step in engine.runner.steps)


def transfers_of(engine: Engine) -> list[Transferred]:
    seen: list[Transferred] = []

    def see(event: Event) -> None:
        if isinstance(event, Transferred):
            seen.append(event)

    engine.bus.subscribe(see)
    return seen


def test_an_evicted_prefix_is_loaded_from_the_tier_it_sank_to() -> None:
    tier = ByteTier(size=100)
    engine = ledger_engine(below=[tier], blocks=16, preemption="swap")
    seen = transfers_of(engine)
    for first in range(8):
        assert answer(engine, first) == alone(prompt(first), 2)
    assert engine.scheduler.pool.evictions and any(not each.load and each.request == -1 for each in seen)
    before = computed(engine)
    assert answer(engine, 0) == alone(prompt(0), 2)
    assert any(each.load for each in seen)
    assert computed(engine) - before < LONG, "the prompt was computed again"


def test_a_full_tier_drops_the_blocks_that_were_used_least_recently() -> None:
    tier = ByteTier(size=8)
    engine = ledger_engine(below=[tier], blocks=8, preemption="swap")
    for first in (*range(6), 0, *range(6, 10)):
        assert answer(engine, first) == alone(prompt(first), 2)
    assert tier.room() == 8 - engine.scheduler.transfers.residence.idle("bytes")
    assert 0 < engine.scheduler.transfers.residence.idle("bytes") <= 8


@pytest.mark.parametrize("failure", ["begin", "end"])
def test_a_sink_that_fails_loses_only_its_copies(failure: str) -> None:
    tier = ByteTier(fails=lambda: failure)
    engine = ledger_engine(below=[tier], blocks=12, preemption="swap")
    for first in (*range(6), *range(6)):
        assert answer(engine, first) == alone(prompt(first), 2)
    assert tier.room() == tier.size
    drain(engine)


def test_blocks_do_not_sink_where_loading_them_would_cost_more_than_computing() -> None:
    tier = ByteTier()
    engine = ledger_engine(below=[tier], blocks=12)
    engine.scheduler.costs.observe_step(1000, 0.001)
    tier.cost.observe(1, 10.0, load=True)
    for first in range(8):
        answer(engine, first)
    assert not tier.moved


def test_nothing_sinks_while_there_is_room() -> None:
    tier = ByteTier()
    engine = ledger_engine(below=[tier], blocks=64, preemption="swap")
    for first in range(4):
        answer(engine, first)
    assert not tier.moved and not tier.used


@pytest.mark.parametrize("copied", [False, True])
def test_blocks_held_for_a_copy_keep_their_turn_to_be_evicted(copied: bool) -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(4, owner=1)
    for block in blocks:
        pool.publish(block, bytes([block]))
    pool.free(blocks)
    order = [block for block, _ in pool.oldest(4)]
    pool.hold(order[:2])
    pool.check({}, [order[:2]])
    assert pool.available == 2 and [block for block, _ in pool.oldest(4)] == order[2:]
    pool.put_back(order[:2], copied=copied)
    assert [block for block, _ in pool.oldest(4)] == (order[2:] if copied else order)
    assert pool.ready == 2 * copied
    pool.check({}, [])
    assert pool.allocate(4, owner=2) == order


def test_a_block_forgotten_while_it_was_held_is_free() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(2, owner=1)
    pool.publish(blocks[0], b"name")
    pool.free(blocks)
    pool.hold(blocks[:1])
    pool.forget(blocks[:1])
    pool.put_back(blocks[:1], copied=True)
    assert pool.ready == 2 and not pool.cached
    pool.check({}, [])


def test_blocks_of_earlier_weights_are_found_again_when_the_weights_return() -> None:
    engine = ledger_engine(below=[ByteTier()], blocks=12, preemption="swap")
    scheduler = engine.scheduler
    for first in range(6):
        answer(engine, first)

    def found() -> list[int]:
        return [first for first in range(6) if scheduler.transfers.find(waiting(engine, first)).tokens]

    assert (before := found())
    scheduler.kv.weights_changed("int4")
    assert not found()
    scheduler.kv.weights_changed("none")
    assert set(before) >= set(found()) and found()


def waiting(engine: Engine, first: int) -> Request:
    """Return a request that waits."""
    id = engine.submit(prompt(first), SamplingParams(max_tokens=2, seed=0), Output())
    request = engine.scheduler.requests[id]
    engine.scheduler.kv.reset_prefix(request)
    return request


def test_tokens_of_a_reply_prefix_do_not_count_as_hits_of_the_prompt() -> None:
    engine = ledger_engine(blocks=64)
    answer(engine, 0, count=60)
    reply = alone(prompt(0), 60)
    engine.submit(prompt(0), SamplingParams(max_tokens=60, seed=0), Output(), reply_prefix=reply[:50])
    drain(engine)
    assert engine.snapshot().prefix_hit_rate == 0.5, "the first request found nothing, the second one all"
