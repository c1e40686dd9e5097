"""Blocks move to tiers below the device and back concurrently with the steps, and no token changes."""

from collections import Counter
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.events import Event, Preempted, Resumed, Transferred
from engine.api.params import SamplingParams
from engine.api.request import Phase
from engine.api.snapshot import loaded_from, stored_in
from engine.kv.pool import BlockPool
from engine.kv.tiers.cost import MeasuredCost
from engine.scheduling.costs import Costs
from engine.scheduling.recovery import PATIENCE
from engine.serving.engine import Engine
from engine.serving.transfers import POLL
from tests.engine.byte_tier import ByteTier, closed
from tests.engine.ledger import alone, drain, ledger_engine
from tests.engine.scheduling.test_company import Job, any_workload, run_workload
from tests.engine.workloads import Workload
from tests.examples import examples
from tests.outputs import Output, transfers_idle

PROMPT = 40


def ask(engine: Engine, first: int = 0, count: int = 30, prompt: int = PROMPT) -> tuple[int, Output]:
    output = Output()
    return engine.submit([first, *range(1, prompt)], SamplingParams(max_tokens=count, seed=0), output), output


def reply(first: int = 0, count: int = 30, prompt: int = PROMPT) -> list[int]:
    return alone([first, *range(1, prompt)], count)


def turn(engine: Engine, count: int = 1) -> None:
    for _ in range(count):
        engine.step()
        engine.scheduler.check()


def compute_in(engine: Engine, seconds: float, tokens: int = PROMPT) -> None:
    engine.scheduler.costs.forget()
    engine.scheduler.costs.observe_step(tokens, seconds)


def engine_over(tier: ByteTier, **config: object) -> tuple[Engine, list[Transferred]]:
    engine, events = ledger_engine(below=[tier], **({"preemption": "swap"} | config)), list[Event]()
    engine.bus.subscribe(lambda event: events.append(event) if isinstance(event, Transferred) else None)
    return engine, events


# Random workloads and tiers


@st.composite
def tiers(draw: st.DrawFn) -> ByteTier:
    """Some transfers are slow, and some fail."""
    kinds = st.tuples(st.sampled_from([0, 0, 2, 9]), st.sampled_from(["", "", "", "begin", "end"]))
    kind = cycle(draw(st.lists(kinds, min_size=2, max_size=6)))

    def fails() -> str:
        tier.looks, failure = next(kind)
        return failure

    tier = ByteTier(draw(st.sampled_from([100, 8, 3, 1, 0])), fails=fails)
    return tier


@pytest.mark.parametrize("late", [False, True])
@examples(8)
@given(work=any_workload, tier=tiers())
def test_tiers_do_not_change_replies(work: Workload[Job], tier: ByteTier, late: bool) -> None:
    """`late`: computing is fast and steps take seconds, so that requests wait for no slow load."""

    def pass_time(engine: Engine, step: int) -> None:
        if step % 5 == 4:
            for request in engine.scheduler.running:
                engine.preempt(request.id)
        if late:
            engine.clock.now += 3.0
            compute_in(engine, 1.0, 64)

    place = replace(work.place, host=0, preemption="auto" if late else "swap", prefix_cache=False)
    run_workload(replace(work, place=place), pass_time, below=[tier])


# Single cases


def test_a_block_records_its_last_copy() -> None:
    """The snapshot's map shows it."""
    engine, _ = engine_over(ByteTier(), blocks=12)
    id, _ = ask(engine)
    turn(engine, 4)
    assert not engine.snapshot().blocks.moved.any()
    engine.preempt(id)
    turn(engine, 2)
    stored = engine.snapshot()
    assert stored.tier_names == ("host", "bytes")
    assert Counter(stored.blocks.moved.tolist()) == {0: 9, stored_in(1): 3}
    drain(engine)
    engine.scheduler.pool.forget_all()
    ask(engine)
    drain(engine)
    loaded = engine.snapshot().blocks
    assert Counter(loaded.moved[loaded.owner >= 0].tolist())[loaded_from(1)] == 2
    ask(engine, 1, prompt=185, count=1)
    turn(engine, 6)
    assert loaded_from(1) not in engine.snapshot().blocks.moved, "another content replaced it"
    drain(engine)


@pytest.mark.parametrize("depth", [0, 1])
def test_other_requests_continue_during_a_transfer(depth: int) -> None:
    tier = ByteTier(looks=6)
    engine, _ = engine_over(tier, depth=depth, slots=2)
    _, other = ask(engine, 1, count=60)
    id, gone = ask(engine, 0)
    turn(engine, 4)
    engine.preempt(id)
    turn(engine)
    request = engine.scheduler.requests[id]
    assert request.phase is Phase.SWAPPED and not request.blocks
    with closed(engine):
        turn(engine, 8)
    assert tier.moved == [("store", 3)]
    before = len(other.tokens)
    turn(engine)
    assert id in engine.scheduler.transfers.loading and request.blocks
    assert (engine.snapshot().loading, engine.snapshot().waiting) == (1, 0)
    _, new = ask(engine, 2, count=2)  # admitted while the other request waits for its blocks
    turn(engine, 5)
    assert id in engine.scheduler.transfers.loading
    assert len(other.tokens) >= before + 5 and len(new.tokens) == 2
    drain(engine)
    assert tier.moved == [("store", 3), ("load", 1)]  # the full blocks were still on the device
    assert (gone.tokens, other.tokens, new.tokens) == (reply(0), reply(1, 60), reply(2, 2))


def test_blocks_being_stored_are_not_taken_before_the_store_ends() -> None:
    engine, output = engine_over(ByteTier(looks=4), blocks=6)
    (_, first), (id, second) = ask(engine, 0, prompt=30, count=40), ask(engine, 1, prompt=30, count=40)
    pool, transfer = engine.scheduler.pool, engine.scheduler.transfers
    while not transfer.in_flight:
        turn(engine)
    [moving] = transfer.in_flight.values()
    assert moving.order.kind == "store" and moving.request.id == id
    before = len(first.tokens)
    while not output:
        assert not pool.can_allocate(1) and pool.in_use == 6 and transfer.freeing == 3
        turn(engine)
    turn(engine, 2)
    assert len(first.tokens) > before  # it had been waiting for a block
    drain(engine)
    assert (first.tokens, second.tokens) == (reply(0, 40, 30), reply(1, 40, 30))


def test_a_request_that_resumes_during_its_store_keeps_its_blocks() -> None:
    tier = ByteTier(looks=5)
    engine, _ = engine_over(tier)
    id, output = ask(engine)
    turn(engine, 4)
    blocks = list(engine.scheduler.requests[id].blocks)
    engine.preempt(id)
    turn(engine, 2)
    assert engine.scheduler.requests[id].blocks[:3] == blocks[:3]
    drain(engine)
    assert tier.moved == [("store", 3)] and output.tokens == reply()
    assert sum(step.tokens for step in engine.runner.steps) == PROMPT + 30 - 1, "a token was computed twice"


def test_a_state_is_stored_as_it_was_when_its_request_was_preempted() -> None:
    """The request goes on during the store, and another one with the same tokens loads the block."""
    tier = ByteTier(looks=6)
    engine, events = engine_over(tier, keeps_state=True)
    outputs = []
    for _ in range(2):
        id, recorded = ask(engine)
        turn(engine)
        engine.preempt(id)
        drain(engine)
        outputs.append(recorded)
        tier.looks = 0
    assert [recorded.tokens for recorded in outputs] == [reply()] * 2
    assert [(each.load, each.blocks) for each in events][-1] == (True, 1)


@pytest.mark.parametrize("kind", ["store", "load"])
@pytest.mark.parametrize("when", ["begin", "end"])
def test_blocks_of_a_failed_transfer_are_computed_again(kind: str, when: str) -> None:
    failures = iter([when, ""] if kind == "store" else ["", when])
    engine, outputs = engine_over(ByteTier(fails=lambda: next(failures)), prefix_cache=False)
    id, recorded = ask(engine)
    turn(engine, 4)
    engine.preempt(id)
    drain(engine)
    assert [each.error for each in outputs if each.error] == [
        f"OSError: simulated failure {'at once' if when == 'begin' else 'late'}"
    ]
    assert recorded.tokens == reply()
    assert sum(step.tokens for step in engine.runner.steps) > PROMPT + 30 - 1


@pytest.mark.parametrize("during", ["store", "load"])
def test_a_transfer_outlives_its_aborted_request(during: str) -> None:
    tier = ByteTier(looks=3)
    engine, outputs = engine_over(tier)
    ask(engine, 1)
    id, recorded = ask(engine)
    turn(engine, 4)
    engine.preempt(id)
    in_flight = engine.scheduler.transfers.in_flight
    turn(engine)
    if during == "load":
        with closed(engine):
            while in_flight:
                turn(engine)
        turn(engine)
    assert [each.order.kind for each in in_flight.values()] == [during]
    engine.abort(id)
    engine.scheduler.check()
    assert in_flight and engine.scheduler.pool.in_use > 4
    drain(engine)
    assert not in_flight and transfers_idle(engine) and len(recorded.tokens) < 30
    assert [each.load for each in outputs] == [False, True][: 1 + (during == "load")]


@pytest.mark.parametrize(("preemption", "late"), [("auto", True), ("swap", False)])
def test_a_request_does_not_wait_for_a_load_longer_than_computing_takes(preemption: str, late: bool) -> None:
    tier = ByteTier()
    engine, outputs = engine_over(tier, preemption=preemption, prefix_cache=False)
    id, recorded = ask(engine)
    turn(engine, 4)
    compute_in(engine, 1.0)  # so moving pays
    engine.preempt(id)
    with closed(engine):
        turn(engine, 3)
    tier.looks = 50
    turn(engine)
    moving, pool = engine.scheduler.transfers, engine.scheduler.pool
    compute_in(engine, 3.2, 64)
    computing = 3.2 * engine.scheduler.requests[id].launched / 64
    assert computing > PATIENCE
    engine.clock.now += computing + 3.1
    turn(engine)
    assert id in moving.loading, "it may have waited for a step, and computing takes as long"
    engine.clock.now += 0.2
    turn(engine)
    assert (id not in moving.loading) is late and moving.in_flight
    assert pool.in_use == (6 if late else 3), "what is still loading writes to its blocks"
    drain(engine)
    assert recorded.tokens == reply()
    slow = [(True, "slower than computing them again")] * late
    assert [(each.load, each.error) for each in outputs] == [(False, ""), *slow, (True, "")]


def test_polls_delay_a_load_by_a_small_part_of_its_time() -> None:
    tier = ByteTier(looks=3)
    engine, _ = engine_over(tier, prefix_cache=False)
    id, _ = ask(engine)
    turn(engine, 4)
    engine.preempt(id)
    with closed(engine):
        turn(engine)
        assert engine.pause() == POLL, "nothing waits for a store"
        turn(engine, 4)
    turn(engine)
    assert id in engine.scheduler.transfers.loading
    began, found = engine.clock.now, []
    for seconds in (0.0, 0.008, 2.0):
        engine.clock.now = began + seconds
        found.append(round(engine.pause(), 6))
    assert found == [POLL / 10, 0.0005, POLL]
    drain(engine)


def test_the_first_tier_with_room_is_used_and_none_if_all_are_full() -> None:
    small = ByteTier(size=3)
    engine, events = engine_over(small, host=3)
    gone: list[Event] = []
    engine.bus.subscribe(lambda event: gone.append(event) if isinstance(event, Preempted) else None)
    ids = [ask(engine, n)[0] for n in range(3)]
    turn(engine, 4)
    for id in ids:
        engine.preempt(id)
    turn(engine, 2)
    assert [(each.tier, each.load) for each in events] == [("host", False), ("bytes", False)]
    assert [each.tier for each in gone if isinstance(each, Preempted)] == ["host", "bytes", ""]
    drain(engine)


def test_shared_blocks_are_stored_once_and_kept_until_both_requests_resume() -> None:
    tier = ByteTier()
    engine, _ = engine_over(tier, prefix_cache=False, slots=2)
    same = list(range(48))
    outputs = [Output(), Output()]
    ids = [engine.submit([*same, n], SamplingParams(max_tokens=20, seed=0), outputs[n]) for n in range(2)]
    turn(engine, 4)
    for id in ids:
        engine.preempt(id)
    with closed(engine):
        turn(engine, 3)
        assert tier.moved == [("store", 4), ("store", 1)], "three shared blocks, and one of each request"
    drain(engine)
    assert [each.tokens for each in outputs] == [alone([*same, n], 20) for n in range(2)]


@pytest.mark.parametrize("slow", [False, True])
def test_measured_costs_decide_between_load_and_recompute(slow: bool) -> None:
    tier = ByteTier()
    engine, events = engine_over(tier, preemption="auto", prefix_cache=False)
    back: list[Event] = []
    engine.bus.subscribe(lambda event: back.append(event) if isinstance(event, Resumed) else None)
    id, recorded = ask(engine)
    turn(engine, 4)
    compute_in(engine, 1.0)
    engine.preempt(id)
    with closed(engine):
        turn(engine, 3)
    if slow:
        tier.cost.observe(1, 1e3, load=True)
    drain(engine)
    assert [each.load for each in events] == [False] + [True] * (not slow)
    assert [each.swapped for each in back if isinstance(each, Resumed)] == [not slow]
    assert recorded.tokens == reply()


@pytest.mark.parametrize(
    ("measured", "saved"), [(100, 96 * 0.5 - 6 * 1.0), (16, 16 * 0.5 - 6 * 1.0), (2, 0.0)]
)
def test_a_reply_says_what_its_loaded_blocks_saved(
    monkeypatch: pytest.MonkeyPatch, measured: int, saved: float
) -> None:
    """By measured costs: if only shorter prompts were measured, computing took at least as long as these."""
    tier = ByteTier()
    engine, _ = engine_over(tier, step_tokens=128)
    id, first = ask(engine, prompt=100)
    turn(engine, 4)
    engine.preempt(id)
    drain(engine)
    assert first.last is not None and not first.last.saved, "it was resumed"
    compute_in(engine, measured * 0.5, measured)
    tier.cost.observe(6, 6.0, load=True)
    monkeypatch.setattr(Costs, "observe_step", lambda *_: None)
    monkeypatch.setattr(MeasuredCost, "observe", lambda *_, load: None)
    engine.scheduler.pool.forget_all()
    _, second = ask(engine, prompt=100)
    drain(engine)
    assert second.tokens == first.tokens == reply(prompt=100)
    assert second.last is not None and (second.last.loaded, second.last.tier) == (96, "bytes")
    assert second.last.saved == saved


def test_a_request_loads_the_blocks_a_tier_still_holds_and_computes_the_others() -> None:
    tier = ByteTier()
    engine, outputs = engine_over(tier, prefix_cache=False)
    id, recorded = ask(engine)
    turn(engine, 4)
    request = engine.scheduler.requests[id]
    engine.preempt(id)
    with closed(engine):
        turn(engine, 3)
    assert request.stored is not None
    tier.release(request.stored.names[2:])  # evicted, as if another request needed the room
    turn(engine)
    assert request.launched == 32
    drain(engine)
    assert recorded.tokens == reply()
    assert [(each.load, each.blocks) for each in outputs] == [(False, 3), (True, 2)]


def test_the_check_finds_a_block_that_a_transfer_has_lost() -> None:
    pool = BlockPool(6, 16)
    mine, moving = pool.allocate(2, owner=1), pool.allocate(2, owner=2)
    pool.check({1: mine}, [moving])
    for wrong in ([], [moving[:1]], [moving, moving], [[5, *moving]]):
        with pytest.raises(AssertionError):
            pool.check({1: mine}, wrong)


def test_a_second_preemption_during_a_store_stores_only_new_blocks() -> None:
    tier = ByteTier(looks=40)
    engine, output = engine_over(tier)
    id, recorded = ask(engine, count=60)
    turn(engine, 4)
    engine.preempt(id)
    turn(engine, 20)  # it resumes at once and fills another block
    request = engine.scheduler.requests[id]
    assert len(request.blocks) == 4 and not output
    engine.preempt(id)
    turn(engine)
    orders = [each.order.names for each in engine.scheduler.transfers.in_flight.values()]
    assert len(orders) == 2 and not set(orders[0]) & set(orders[1]), "a block is in two stores at once"
    drain(engine)
    assert recorded.tokens == reply(count=60)
