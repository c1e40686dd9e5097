"""Cached blocks are copied to a lower tier before they are evicted, and loaded from there."""

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from engine.api.events import Event, Transferred
from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.kv.pool import BlockPool
from engine.kv.tiers.host import HostTier
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Transfer
from engine.scheduling.residence import Residence
from engine.serving.engine import Engine
from tests.engine.byte_tier import ByteTier
from tests.engine.ledger import LedgerBlocks, LedgerSpace, alone, drain, ledger_engine
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


def test_a_long_prompt_takes_no_block_without_a_copy() -> None:
    """Within the usual number of steps between two looks, each of its steps takes a third of the cache."""
    engine = ledger_engine(below=[ByteTier()], blocks=12, preemption="swap")
    prompts = [[first, *range(1, 180)] for first in range(3)]
    for tokens in prompts:
        engine.submit(tokens, SamplingParams(max_tokens=1, seed=0), Output())
        drain(engine)
    before = computed(engine)
    engine.submit(prompts[0], SamplingParams(max_tokens=1, seed=0), Output())
    drain(engine)
    assert computed(engine) - before == 180 - 11 * 16, "only the last block, which is not full, is computed"


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


class CountingTier(ByteTier):
    """Counts how many names it was asked for."""

    asked = 0

    def holds(self, names: Sequence[BlockName]) -> int:
        self.asked += len(names)
        return super().holds(names)


def test_a_reply_costs_no_more_lookups_than_blocks_where_the_tier_is_smaller_than_a_step() -> None:
    """On a GPU a step may take 512 blocks, and host memory may hold about 1,000."""
    tier = CountingTier(size=8)
    engine = ledger_engine(below=[tier], blocks=64, step_tokens=256, preemption="swap")
    for first in range(24):  # the cache is full after the first few, before anything is copied
        engine.submit(prompt(first), SamplingParams(max_tokens=20, seed=0), Output())
    drain(engine)
    assert engine.scheduler.pool.evictions
    tier.asked = 0
    answer(engine, 30, count=320)
    assert tier.asked <= tier.size + (len(prompt(30)) + 320) // 16


def test_a_tier_smaller_than_a_step_holds_blocks_that_the_device_has_lost() -> None:
    tier = ByteTier(size=16)
    engine = ledger_engine(below=[tier], blocks=64, step_tokens=256, preemption="swap")
    for first in range(40):
        answer(engine, first)
    pool, stored = engine.scheduler.pool, set(tier.names)
    lost = [name for name in stored if pool.find(name) is None]
    assert len(stored) == 16 and 6 <= len(lost) <= 10, "half of it is for blocks that are evicted next"
    assert {name for _, name in [*pool.oldest(64)]}.isdisjoint(stored), "copied blocks are counted as such"


def test_a_tier_without_room_is_not_asked_again_and_again() -> None:
    """All it holds are blocks of preempted requests."""
    tier = CountingTier(size=100)
    engine = ledger_engine(below=[tier], blocks=16, preemption="swap")
    for first in range(8):
        answer(engine, first)
    tier.asked = 0
    with patch.object(tier, "room", return_value=0), patch.object(Residence, "idle", return_value=0):
        answer(engine, 8, count=100)
    assert tier.asked <= len(prompt(8)) // 16 + 1


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
    assert [pool.allocate(1, owner=2) for _ in order] == [[block] for block in order]


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


def test_a_dropped_block_that_is_shared_while_it_is_copied_is_no_longer_marked() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(1, owner=1)
    pool.publish(blocks[0], b"name")
    pool.drop(blocks)
    assert pool.dropped[blocks[0]]
    pool.hold(blocks)
    pool.share(blocks)
    pool.put_back(blocks, copied=False)
    assert not pool.dropped[blocks[0]]
    pool.check({2: blocks}, [])


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


def test_blocks_that_are_neighbors_move_together() -> None:
    """Blocks are freed in any order, but taken in order, and neighbors are neighbors in host memory."""
    pairs: list[list[tuple[int, int]]] = []
    space = LedgerSpace(12, 12, 16)
    space.swap_out = space.swap_in = lambda given: pairs.append(list(given))
    pool, tier = BlockPool(12, 16), HostTier(space)
    names = [bytes([at]) for at in range(8)]
    for _ in range(3):
        blocks = pool.allocate(8, owner=1)
        assert blocks == sorted(blocks)
        tier.store(names, LedgerBlocks(space.cells, tuple(reversed(blocks))))
        assert [block for block, _ in pairs[-1]] == blocks
        assert [place for _, place in pairs[-1]] == list(range(8))
        tier.load(names, LedgerBlocks(space.cells, tuple(reversed(blocks))))
        assert pairs[-1] == [(place, block) for block, place in pairs[-2]]
        pool.free(blocks)
        tier.release(names[::-2] + names[::2])


def test_the_reported_time_of_a_store_includes_what_the_engine_waited_for() -> None:
    """A tier may copy the blocks before it returns the transfer, which then has nothing left to do."""

    class Slow(ByteTier):
        def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
            engine.clock.now += 0.25
            return super().store(names, blocks)

    engine = ledger_engine(below=[Slow()], blocks=16, preemption="swap")
    seen = transfers_of(engine)
    for first in range(8):
        answer(engine, first)
    assert seen and {each.seconds for each in seen if not each.load} == {0.25}
