"""The engine uses a tier only where that is faster than computing, by what it has measured."""

from dataclasses import replace
from typing import TypeVar

import pytest

from engine.api.events import Admitted, Event, Preempted
from engine.kv.tiers.cost import BySize, MeasuredCost
from engine.scheduling.costs import Costs
from engine.serving.engine import Engine
from engine.serving.warm_up import WarmUp
from tests.cases import soak
from tests.engine.simulated import Disk, Machine, ask, seconds, simulated

# About a 0.6B model and an 8B model on a GPU with graphs, and a small model on a CPU.
SMALL = Machine(step=1e-3, row=2e-5, token=4.4e-6, launch=8e-4, order=1e-3, store=4e-5, load=4e-5)
LARGE = Machine(step=4e-3, row=3e-5, token=3e-5, launch=8e-4, order=1e-3, store=4e-5, load=4e-5)
CPU = Machine(step=3e-3, row=5e-4, token=1.5e-4, store=5e-5, load=5e-5, ahead=False)
SLOW_DISK = {"order": 1e-4, "latency": 2e-3, "store": 3e-4, "load": 3e-4}

Kind = TypeVar("Kind", bound=Event)


def seen(engine: Engine, kind: type[Kind]) -> list[Kind]:
    found = list[Kind]()
    engine.bus.subscribe(lambda event: found.append(event) if isinstance(event, kind) else None)
    return found


def tokens(number: int, length: int) -> list[int]:
    return [number % 1000, number // 1000, *(at % 1000 for at in range(length - 2))]


# Preempted requests


@pytest.mark.parametrize(
    ("machine", "prompt", "reply", "swapping"),
    [(SMALL, 64, 300, False), (LARGE, 64, 300, True), *soak((LARGE, 500, 150, True)), (CPU, 60, 100, True)],
)
def test_preempted_requests_are_swapped_only_where_that_is_faster(
    machine: Machine, prompt: int, reply: int, swapping: bool
) -> None:
    requests, took = 24, dict[str, float]()
    blocks = requests * (prompt + reply // 2) // 16  # enough until half of a reply
    for rule in ("swap", "recompute", "auto"):
        engine = simulated(
            machine, preemption=rule, prefix_cache=False, blocks=blocks, host=blocks, slots=requests,
            step_tokens=8192, context=4096,
        )  # fmt: skip
        preempted = seen(engine, Preempted)
        for number in range(requests):
            ask(engine, tokens(number, prompt), reply)
        took[rule] = seconds(engine)
    assert (took["swap"] < took["recompute"]) == swapping, "the case is not what it is for"
    assert took["auto"] < 1.01 * min(took.values())
    known = [each.swapped for each in preempted[2:]]  # the first are tries
    assert known == [swapping] * len(known) and known


# Chats


def turns(engine: Engine, length: int, rounds: int) -> list[float]:
    """The first token of a chat's second turn, after its blocks have left the device."""
    found = []
    for number in range(rounds):
        chat = tokens(number, length)
        first = ask(engine, chat)
        seconds(engine)
        engine.scheduler.pool.forget_all()
        ask(engine, [*chat, *first.tokens, *range(16)], 1)
        found.append(seconds(engine))
    return found


@pytest.mark.parametrize(("machine", "length", "loading"), [(SMALL, 4096, False), (CPU, 500, True)])
def test_a_chat_is_loaded_only_where_that_is_faster(machine: Machine, length: int, loading: bool) -> None:
    options = {"blocks": 600, "step_tokens": 8192, "context": 8192}
    machine = replace(machine, **SLOW_DISK)
    computed = turns(simulated(machine, **options), length, 1)[0]
    engine = simulated(machine, below=[Disk(size=100_000)], **options)
    admitted = seen(engine, Admitted)
    took = turns(engine, length, 20)
    tried = [each.loaded for each in admitted[1::2]]
    if loading:
        assert all(tried) and max(took) < computed / 2
    else:
        assert sum(tried) <= 2
        assert sorted(took)[-3] < 1.02 * computed


def test_a_disk_that_was_slow_once_is_tried_again() -> None:
    machine = replace(CPU, **SLOW_DISK)
    engine = simulated(machine, below=[Disk(size=100_000)], blocks=600, step_tokens=8192, context=8192)
    engine.runner.machine = replace(machine, load=0.008)
    admitted = seen(engine, Admitted)
    turns(engine, 500, 2)
    engine.runner.machine = machine
    turns(engine, 500, 160)
    tried = [each.loaded for each in admitted[1::2]]
    assert all(tried[:2]) and not any(tried[2:10])
    assert all(tried[-10:])


def test_a_request_that_waits_for_room_is_no_reason_to_doubt() -> None:
    """Each step looks for its blocks again."""
    engine = simulated(CPU, below=[Disk(size=100)], blocks=40, slots=2, step_tokens=512, context=512)
    [disk] = (tier for tier in engine.scheduler.transfers.tiers.values() if isinstance(tier, Disk))
    ask(engine, (chat := tokens(0, 160)))
    seconds(engine)
    engine.scheduler.pool.forget_all()
    disk.cost.observe(10, 8 * engine.scheduler.costs.recompute(160), load=True)
    before = disk.cost.back(10)
    ask(engine, tokens(1, 480), 30)
    ask(engine, [*chat, 1, 2])
    while engine.scheduler.requests.keys() != {2}:
        engine.step()
    assert disk.cost.back(10) > 0.95 * before


def test_what_was_measured_at_the_warm_up_decides_about_the_first_chat() -> None:
    """A disk may be full of blocks when the engine starts."""
    machine = replace(SMALL, **SLOW_DISK)
    engine = simulated(machine, below=[Disk(size=100_000)], blocks=600, step_tokens=4096, context=8192)
    engine.limits = replace(engine.limits, speculation=())  # this machine does not draft
    warm_up = WarmUp(engine, (1, 2, 4, 8))
    while not warm_up.over or engine.busy:
        if not warm_up.step():
            engine.clock.now += 1e-4
    for length in (128, 4096):
        assert engine.scheduler.costs.recompute(length) == pytest.approx(
            machine.launch + machine.step + length * machine.token, rel=0.1
        )
    assert engine.scheduler.costs.wait(1) == pytest.approx(machine.step + machine.row, rel=0.1)


# Copies that may not be needed


def test_copies_that_nobody_needs_take_a_small_part_of_the_time() -> None:
    """48 requests come at once, with blocks for a quarter of them."""
    machine, took = replace(SMALL, order=2e-3), dict[int, float]()
    for host in (0, 1200):
        engine = simulated(machine, blocks=300, host=host, slots=256, step_tokens=8192, context=4096)
        for number in range(48):
            ask(engine, tokens(number, 64 + 37 * number % 448), 24 + 29 * number % 168)
        took[host] = seconds(engine)
    assert took[1200] < 1.04 * took[0]


def test_copies_go_on_if_their_loads_save_more() -> None:
    """Eight chats in turn, with blocks for four of them."""
    machine, took = replace(LARGE, order=4e-3), dict[int, float]()
    for host in (0, 1200):
        engine = simulated(machine, blocks=300, host=host, slots=4, step_tokens=8192, context=4096)
        for number in range(60):
            ask(engine, tokens(number % 8, 1000), 16)
        took[host] = seconds(engine)
    assert took[1200] < 0.85 * took[0]


# Measurements


def test_a_step_of_copies_alone_says_nothing_about_decodes() -> None:
    costs = Costs()
    costs.observe_step(0, 1e-5)
    assert not costs.wait(1)
    costs.observe_step(0, 0.004, decodes=1)
    assert costs.wait(1) == pytest.approx(0.004)


def test_a_prompt_beside_decodes_costs_what_it_makes_the_step_longer() -> None:
    costs = Costs()
    costs.observe_step(100, 0.5, decodes=64)
    assert not costs.recompute(100), "the decodes alone were not measured"
    for _ in range(3):
        costs.observe_step(0, 0.004, decodes=64)
        costs.observe_step(100, 0.005, decodes=64)
    assert costs.recompute(100) == pytest.approx(0.001)
    costs.observe_step(10_000, 0.1)
    assert costs.recompute(5000) == pytest.approx(0.05, rel=0.02)
    assert costs.recompute(20_000) == pytest.approx(0.2)
    assert (costs.wait(0), costs.wait(64)) == (0.0, 0.004 / 64)


def test_small_transfers_do_not_make_large_ones_seem_slow() -> None:
    cost = MeasuredCost()
    assert cost.back(100) == 0.0
    for _ in range(2):
        cost.observe(1, 0.002, load=True)
    assert cost.back(100) == 0.002, "at least, as the others are unknown"
    cost.observe(100, 0.012, load=True)
    assert cost.back(1) == 0.002
    assert cost.back(50) == pytest.approx(0.007, rel=0.01)
    assert cost.back(199) == pytest.approx(0.022, rel=0.01)
    for _ in range(2):
        cost.observe(100, 9.0, load=True)
        cost.observe(100, 0.012, load=True)
    assert cost.back(100) == 0.012, "stalls do not count"


def test_the_first_transfer_decides_little() -> None:
    """It loads kernels and starts threads."""
    cost = MeasuredCost()
    for load in (False, True):
        cost.observe(20, 1.6, load=load)
    assert cost.back(20) == 0.1 and cost.round_trip(20) == 0.2
    cost.observe(100, 0.01, load=True)
    assert cost.back(100) == cost.back(20) == 0.01, "a smaller one takes no longer"


def test_the_time_of_a_size_is_on_a_line_through_its_neighbors() -> None:
    known = BySize()
    assert known.whole(7) == known.each(7) == 0.0
    known.observe(8, 0.04)
    assert known.whole(4) == 0.02
    assert known.whole(300) == 0.04, "a larger one takes no less"
    known.observe(64, 0.1)
    known.observe(1000, 1.0)
    assert known.whole(300) == pytest.approx(0.1 + 0.9 * (300 - 64) / (1000 - 64))
    assert known.whole(3000) == pytest.approx(0.1 + 0.9 * (3000 - 64) / (1000 - 64))
    assert known.each(300) == 0.1 / 64
