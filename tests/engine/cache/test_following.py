"""A step is launched while its blocks arrive: only the device waits for them, and no token changes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api.errors import EngineDead
from engine.api.events import Admitted, Event, Resumed, Transferred
from engine.api.params import SamplingParams
from engine.execution.cache_blocks import OnStream
from engine.execution.protocol import StepResult
from engine.execution.transfers import TransferRunner
from engine.kv.tiers.host import LAST, HostTier
from engine.kv.tiers.tier import CompletedTransfer, Transfer, TransferOrder
from engine.scheduling.step import Step
from engine.serving.engine import Engine
from engine.serving.recordings.replay import LoggedRunner
from tests.engine.byte_tier import ByteTier, DelayedCopy
from tests.engine.ledger import Clock, LedgerSpace, alone, drain, ledger_engine
from tests.engine.scheduling.test_company import Job, any_workload, run_workload
from tests.engine.workloads import Workload
from tests.examples import examples
from tests.outputs import Output, transfers_idle

PROMPT = list(range(1, 90))
STORED = 5  # whole blocks of it


def resumed(tier: ByteTier, **config: object) -> tuple[Engine, list[Event]]:
    """Return an engine whose tier, and not its device, has the prompt's blocks."""
    tier.looks, looks = 0, tier.looks
    engine, seen = ledger_engine(below=[tier], preemption="swap", **config), list[Event]()
    id, _ = ask(engine)
    while not engine.scheduler.requests[id].generated:
        engine.step()
    engine.preempt(id)
    drain(engine)
    engine.scheduler.pool.forget_all()
    tier.looks = looks
    kinds = Admitted, Resumed, Transferred
    engine.bus.subscribe(lambda event: seen.append(event) if isinstance(event, kinds) else None)
    return engine, seen


def ask(engine: Engine, prompt: Sequence[int] = PROMPT, count: int = 4) -> tuple[int, Output]:
    reply = Output()
    return engine.submit(prompt, SamplingParams(max_tokens=count, seed=0), reply), reply


def turn(engine: Engine, count: int = 1) -> None:
    for _ in range(count):
        engine.step()
        engine.scheduler.check()


# Random workloads


@st.composite
def tiers(draw: st.DrawFn) -> ByteTier:
    """Loads that steps can follow early, late or never; some transfers fail."""
    kinds = st.tuples(st.sampled_from([0, 2, 5, 12]), st.sampled_from([None, 0, 1, 99, 99]))
    failures = cycle(draw(st.lists(st.sampled_from(["", "", "", "end"]), min_size=1, max_size=4)))
    kind = cycle(draw(st.lists(kinds, min_size=2, max_size=6)))

    def next_kind() -> str:
        tier.looks, tier.near = next(kind)
        return next(failures)

    tier = ByteTier(draw(st.sampled_from([100, 8])), fails=next_kind)
    return tier


@examples(8)
@given(work=any_workload, tier=tiers(), every=st.sampled_from([1, 3, 5]))
def test_following_steps_do_not_change_replies(work: Workload[Job], tier: ByteTier, every: int) -> None:
    """Requests are preempted, aborted and forked while their blocks arrive."""

    def preempt(engine: Engine, step: int) -> None:
        if step % 6 >= 6 - every:
            for request in engine.scheduler.running:
                engine.preempt(request.id)

    place = replace(work.place, host=0, preemption="swap", prefix_cache=work.place.depth > 0)
    run_workload(replace(work, place=place), preempt, below=[tier])


# In the device's order


class DeviceQueue:
    """A runner whose device computes a step when its tokens are waited for, after the copies it follows."""

    def __init__(self, engine: Engine, tier: ByteTier) -> None:
        self._engine, self._runner = engine, engine.runner
        self.log: list[str] = []
        self._queue: list[tuple[str, Callable[[], object]]] = []
        tier.queue = lambda work: self._queue.append(("copied", work))
        engine.runner = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, step: Step) -> list[StepResult]:
        found: list[StepResult] = []
        self.log.append("launched")
        self._queue.append(("computed", lambda: found.append(self._runner.launch(step))))
        return found

    def collect(self, handle: list[StepResult]) -> StepResult:
        while not handle:
            done, work = self._queue.pop(0)
            self.log.append(done)
            work()
        seconds = 5.0 if "copied" in self.log[-2:] else 0.5
        self._engine.clock.now += seconds
        return replace(handle[0], seconds=seconds)


def test_a_step_is_launched_while_its_blocks_arrive() -> None:
    engine, seen = resumed(ByteTier(looks=9, near=4))
    [tier] = (each for each in engine.scheduler.transfers.tiers.values() if isinstance(each, ByteTier))
    device = DeviceQueue(engine, tier)
    id, reply = ask(engine)
    turn(engine, 5)
    assert id in engine.scheduler.transfers.loading and not device.log, "too much is left to copy"
    turn(engine)
    assert device.log == ["launched", "copied", "computed"]
    assert reply.tokens == alone(PROMPT, 1)
    assert [type(each) for each in seen] == [Admitted], "the host does not know yet that the copy has ended"
    assert engine.scheduler.transfers.in_flight and not engine.scheduler.transfers.loading
    drain(engine)
    assert [type(each) for each in seen] == [Admitted, Transferred]
    assert isinstance(seen[0], Admitted) and seen[0].cached == STORED * 16
    assert reply.tokens == alone(PROMPT, 4) and transfers_idle(engine)


def test_the_time_of_a_step_that_waits_for_blocks_is_not_a_cost() -> None:
    tier = ByteTier(looks=9, near=99)
    engine, _ = resumed(tier)
    DeviceQueue(engine, tier)
    costs = engine.scheduler.costs
    costs.forget()
    ask(engine, [*PROMPT, *range(20)], count=1)  # more than 16 tokens are computed
    drain(engine)
    assert not costs.recompute(16), "nothing was measured"
    ask(engine, PROMPT[:32][::-1], count=1)
    drain(engine)
    assert costs.recompute(32) == 0.5, "later steps are measured again"


def test_the_time_of_a_step_that_waits_for_the_compiler_is_not_a_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks would be loaded that the engine can compute sooner, and so it would never learn."""
    engine = ledger_engine(clock=(clock := Clock()))
    costs, collect = engine.scheduler.costs, engine.runner.collect
    for compiled, prompt in ((True, PROMPT[:32]), (False, PROMPT[32:64])):
        monkeypatch.setattr(
            engine.runner, "collect", lambda handle, was=compiled: replace(collect(handle), compiled=was)
        )
        clock.now += 1
        ask(engine, prompt, count=1)
        drain(engine)
        assert (costs.recompute(32) > 0) != compiled


@pytest.mark.parametrize("depth", [0, 1])
def test_a_step_with_other_requests_waits_for_no_blocks(depth: int) -> None:
    engine, _ = resumed(ByteTier(looks=9, near=99), depth=depth)
    _, other = ask(engine, [7, 8, 9], count=30)
    turn(engine, 2)
    id, reply = ask(engine)
    turn(engine, 9)
    assert id in engine.scheduler.transfers.loading and len(other.tokens) > 8
    drain(engine)
    assert (reply.tokens, other.tokens) == (alone(PROMPT, 4), alone([7, 8, 9], 30))


def test_a_request_preempted_while_it_follows_waits_for_its_own_load_only() -> None:
    tier = ByteTier(looks=12, near=99)
    engine, _ = resumed(tier)
    id, reply = ask(engine, count=9)
    turn(engine, 2)
    request, transfers = engine.scheduler.requests[id], engine.scheduler.transfers
    assert request.slot >= 0 and len(transfers.in_flight) == 1
    engine.scheduler.pool.forget_all()
    engine.preempt(id)
    tier.looks, tier.near = 40, None
    while id not in transfers.loading:
        turn(engine)
    assert len(transfers.in_flight) > 1, "the first load is still in flight"
    while len([each for each in transfers.in_flight.values() if each.order.kind == "load"]) > 1:
        turn(engine)
    assert id in transfers.loading
    drain(engine)
    assert reply.tokens == alone(PROMPT, 9)


@pytest.mark.parametrize("ends", ["abort", "die"])
def test_a_request_can_end_while_it_follows(ends: str) -> None:
    engine, _ = resumed(ByteTier(looks=30, near=99))
    id, reply = ask(engine, count=9)
    turn(engine, 2)
    assert reply.tokens and engine.scheduler.transfers.in_flight
    if ends == "abort":
        engine.abort(id)
        engine.scheduler.check()
        assert engine.scheduler.pool.in_use == STORED, "the copy still writes to its blocks"
        drain(engine)
        assert transfers_idle(engine)
    else:
        engine.die("closed")
    assert reply.finish is not None and reply.tokens == alone(PROMPT, 9)[: len(reply.tokens)]


# Which transfers can be followed


def test_only_copies_of_the_device_are_followed_and_none_of_a_recorded_runner() -> None:
    tier = ByteTier(looks=3)
    engine, _ = resumed(tier)
    ask(engine)
    turn(engine)
    [load] = engine.scheduler.transfers.in_flight
    assert not engine.runner.follow(load), "as from a disk, which can fail"
    drain(engine)
    engine.scheduler.pool.forget_all()
    tier.near = 99
    ask(engine)
    turn(engine)
    [load] = engine.scheduler.transfers.in_flight
    assert not engine.runner.follow(load + 1) and not LoggedRunner(engine.runner, None).follow(load)
    assert engine.runner.follow(load)
    drain(engine)


def test_the_engine_ends_if_a_copy_fails_that_a_step_has_followed() -> None:
    """Then the device has failed. The step has read wrong blocks."""

    class Broken(DelayedCopy):
        def result(self) -> float:
            raise RuntimeError("CUDA error")

    class Tier(ByteTier):
        def load(self, names: Sequence[bytes], blocks: object) -> Transfer:
            return Broken(lambda: None, 0, 99, lambda work: None)

    runner = TransferRunner([Tier()], lambda numbers: None)
    order = TransferOrder(0, "load", "bytes", (b"a",), (0,))
    runner.begin(order)
    assert [each.error for each in runner.ended()] == ["RuntimeError: CUDA error"]
    runner.begin(order)
    assert runner.follow(0)
    with pytest.raises(EngineDead, match="a copy failed that a step waited for: CUDA error"):
        runner.ended()


@pytest.mark.parametrize("works", [1, 2, 3])
def test_a_stream_waits_for_the_end_once_the_last_work_has_begun(
    monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    """`tests/kernels/attention/test_blocks.py` does it on a GPU."""
    log, begun = list[str](), set[int]()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.number = sum(each.startswith("mark") for each in log)

        def record(self) -> None:
            log.append(f"mark {self.number}")

        def query(self) -> bool:
            return self.number in begun

        def wait(self) -> None:
            log.append(f"wait {self.number}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    moving = OnStream([partial(log.append, f"work {number}") for number in range(works)])
    order = [each for number in range(works) for each in (f"mark {number}", f"work {number}")]
    assert log == [*order, f"mark {works}"]
    begun.update(range(works - 1))
    assert not moving.follow() and log == [*order, f"mark {works}"]
    begun.add(works - 1)
    assert moving.follow() and not moving.done() and log[-1] == f"wait {works}"


@pytest.mark.parametrize(("count", "parts"), [(1, [1]), (LAST, [LAST]), (LAST + 5, [5, LAST])])
def test_a_step_waits_for_the_last_blocks_of_a_load_from_host_memory(count: int, parts: list[int]) -> None:
    size = LAST + 16
    space, moved = LedgerSpace(size, size, 16), list[int]()

    class Blocks:
        numbers = tuple(range(count))

        def move(self, *works: Callable[[], None]) -> Transfer:
            for work in works:
                before = (space.cells[:, 0] >= 0).sum()
                work()
                moved.append((space.cells[:, 0] >= 0).sum() - before)
            return CompletedTransfer(0.0)

    tier, names = HostTier(space), [bytes([at]) for at in range(count)]
    space.cells[:, 0] = range(size)
    tier.store(names, Blocks())
    space.cells[:] = -1
    moved.clear()
    tier.load(names, Blocks())
    assert moved == parts and space.cells[:count, 0].tolist() == list(range(count))
