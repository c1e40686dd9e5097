"""The scheduler's decisions step by step, as seen in the steps that reach the ledger."""

import math
from typing import Any
from weakref import WeakSet

import pytest

from engine.api import events
from engine.api.errors import BadInput
from engine.api.params import SamplingParams
from engine.api.request import Finish, Phase, Request
from engine.kv.tiers.cost import MeasuredCost
from engine.scheduling.costs import Costs
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.settings import SchedulerSettings
from engine.scheduling.step import Step
from engine.serving.engine import Engine
from tests.engine.ledger import Clock, alone, drain, ledger_engine
from tests.outputs import Output


def ask(engine: Engine, prompt: int, count: int = 4, first: int = 0, **how: object) -> tuple[int, Output]:
    """Submit a request with a prompt of `prompt` tokens; `first` makes it different from others."""
    reply = Output()
    seed = how.pop("seed", 0)
    tokens = [first, *range(1, prompt)]
    return engine.submit(tokens, SamplingParams(max_tokens=count, seed=seed), reply, **how), reply


def steps(engine: Engine) -> list[Step]:
    return engine.runner.steps


def collect_events(engine: Engine, kind: type[events.Event]) -> list[events.Event]:
    found: list[events.Event] = []
    engine.bus.subscribe(lambda event: found.append(event) if isinstance(event, kind) else None)
    return found


def test_decodes_go_first_and_prompt_chunks_fill_the_budget() -> None:
    engine = ledger_engine(step_tokens=20)
    short, _ = ask(engine, prompt=5)
    engine.step()
    long, _ = ask(engine, prompt=50, first=1)
    drain(engine)
    second = steps(engine)[1]
    assert [(row.request, row.length) for row in second.rows] == [(short, 1), (long, 19)]
    assert max(step.tokens for step in steps(engine)) <= 20


def test_the_event_of_a_request_counts_the_tokens_of_the_reply_that_it_begins_with() -> None:
    engine = ledger_engine()
    queued, admitted = collect_events(engine, events.Queued), collect_events(engine, events.Admitted)
    for _ in range(2):
        engine.submit([*range(5)], SamplingParams(max_tokens=64), Output(), reply_prefix=[*range(40)])
        drain(engine)
    assert [(each.prompt, each.generated) for each in queued] == [(5, 40)] * 2
    assert 5 < admitted[1].cached < 45


def test_a_prompt_runs_whole_and_alone_without_chunked_prefill() -> None:
    engine = ledger_engine(step_tokens=20, chunked_prefill=False)
    ask(engine, prompt=50)
    ask(engine, prompt=40, first=1)
    drain(engine)
    assert [row.length for step in steps(engine) for row in step.rows if row.length > 1] == [50, 40]
    assert all(sum(row.length > 1 for row in step.rows) <= 1 for step in steps(engine))


def test_the_next_turn_of_a_chat_reuses_the_cache_of_the_last() -> None:
    engine = ledger_engine()
    _, reply = ask(engine, prompt=30, count=20)
    drain(engine)
    turn = [0, *range(1, 30), *reply.tokens, 5, 6, 7]
    engine.submit(turn, SamplingParams(max_tokens=2, seed=0), (again := Output()))
    drain(engine)
    assert (
        steps(engine)[-2].rows[0].start == 48
    )  # whole blocks of 30 + 20 tokens, of which the last was never computed
    assert again.tokens == alone(turn, 2)


def test_salts_separate_cached_prefixes() -> None:
    engine = ledger_engine()
    admitted = collect_events(engine, events.Admitted)
    for salt in (b"", b"", b"mine", b"mine"):
        ask(engine, prompt=40, salt=salt)
        drain(engine)
    assert [event.cached for event in admitted] == [0, 32, 0, 32]


def test_no_prefix_is_found_without_the_prefix_cache() -> None:
    engine = ledger_engine(prefix_cache=False)
    admitted = collect_events(engine, events.Admitted)
    for _ in range(2):
        ask(engine, prompt=40)
        drain(engine)
    assert [event.cached for event in admitted] == [0, 0]


def test_the_latest_request_is_preempted_and_resumes() -> None:
    engine = ledger_engine(blocks=6)
    gone, back = collect_events(engine, events.Preempted), collect_events(engine, events.Resumed)
    replies = [ask(engine, prompt=30, count=40, first=n) for n in range(2)]
    drain(engine)
    assert {event.request for event in gone} == {1}
    assert {event.request for event in back} == {1}
    for n, (_, reply) in enumerate(replies):
        assert reply.tokens == alone([n, *range(1, 30)], 40)


def test_priority_decides_before_arrival_which_request_is_preempted() -> None:
    engine = ledger_engine(blocks=6, policy="priority")
    gone = collect_events(engine, events.Preempted)
    ask(engine, prompt=30, count=40, first=0, priority=1)
    ask(engine, prompt=30, count=40, first=1, priority=0)
    drain(engine)
    assert {event.request for event in gone} == {0}


def test_priority_decides_before_arrival_in_the_queue() -> None:
    engine = ledger_engine(slots=1, policy="priority")
    for n, priority in enumerate((2, 2, 0, 1)):
        ask(engine, prompt=4, count=1, first=n, priority=priority)
    drain(engine)
    assert [step.rows[0].request for step in steps(engine)] == [2, 3, 0, 1]


def test_a_swapped_request_continues_without_recomputing() -> None:
    engine = ledger_engine(blocks=6, host=6, preemption="swap")
    gone, back = collect_events(engine, events.Preempted), collect_events(engine, events.Resumed)
    for n in range(2):
        ask(engine, prompt=30, count=40, first=n)
    drain(engine)
    assert all(event.swapped for event in (*gone, *back))
    assert sum(step.tokens for step in steps(engine)) == 2 * (30 + 40 - 1)  # no token was computed twice


def test_the_measured_cost_decides_between_swap_and_recompute() -> None:
    costs, tier, rules = Costs(), MeasuredCost(), SchedulerSettings(step_tokens=64)

    def swaps() -> bool:
        return costs.moving_pays(tier.round_trip(7), 100, rules)

    assert not swaps()  # no measurement yet: do not swap
    costs.observe_step(prefill_tokens=100, seconds=0.1)
    assert swaps()  # no swap has been timed yet: try one
    tier.observe(10, 1.0, load=False)
    assert swaps()  # the first one says little
    tier.observe(10, 1.0, load=False)
    assert not swaps()  # no load has been timed yet: assume it takes as long as a store
    for _ in range(50):
        tier.observe(10, 0.001, load=False)
    assert swaps()
    for _ in range(2):
        tier.observe(10, 1.0, load=True)
    assert not swaps()
    assert costs.moving_pays(1e9, 1, SchedulerSettings(step_tokens=64, preemption="swap"))
    assert not costs.moving_pays(0.0, 100, SchedulerSettings(step_tokens=64, preemption="recompute"))


def test_short_messages_do_not_make_a_long_prompt_seem_slow() -> None:
    costs, rules = Costs(), SchedulerSettings(step_tokens=8192)
    costs.observe_step(2000, 2000 * 23e-6)
    for _ in range(20):  # a step takes a while, however few tokens it has
        costs.observe_step(32, 0.015)
    assert not costs.loading_pays(0.06, 2000, rules)
    assert costs.loading_pays(0.03, 2000, rules)
    assert costs.recompute(32) == pytest.approx(0.015)
    assert costs.recompute(20) == pytest.approx(20 / 32 * 0.015)


def test_a_request_is_preempted_by_command() -> None:
    engine = ledger_engine()
    gone = collect_events(engine, events.Preempted)
    id, reply = ask(engine, prompt=20, count=10)
    engine.step()
    engine.preempt(id)
    engine.step()
    assert engine.scheduler.requests[id].phase is Phase.PREEMPTED
    drain(engine)
    assert len(gone) == 1
    assert reply.tokens == alone([0, *range(1, 20)], 10)


def test_a_fork_shares_blocks_until_either_writes() -> None:
    engine = ledger_engine()
    id, reply = ask(engine, prompt=40, count=10)
    engine.step()
    engine.step()
    child = engine.fork(id, branch := Output(), SamplingParams(max_tokens=10, seed=5))
    assert engine.scheduler.requests[child].phase is Phase.DECODE  # it has no prompt to prefill
    assert engine.scheduler.requests[child].blocks == engine.scheduler.requests[id].blocks
    assert engine.scheduler.requests[child].cached_tokens == 40  # of the prompt; it shares the reply, too
    assert engine.scheduler.pool.in_use == 3
    engine.step()
    [(source, copy)] = steps(engine)[-1].copies
    tails = {engine.scheduler.requests[each].blocks[2] for each in (id, child)}
    assert tails == {source, copy}
    assert engine.scheduler.pool.in_use == 4
    drain(engine)
    common = reply.tokens[:2]
    assert branch.tokens == alone([0, *range(1, 40), *common], 8, seed=5)


def test_a_waiting_request_reports_the_reason() -> None:
    engine = ledger_engine(blocks=6, step_tokens=200)
    ask(engine, prompt=80, count=10)
    waiting, _ = ask(engine, prompt=60, count=10, first=1)
    engine.step()
    assert engine.scheduler.requests[waiting].why == "needs 4 blocks, 1 available"


def test_blocks_that_a_request_finds_in_the_cache_are_not_available_to_it() -> None:
    """But the map shows them as cached, and so the reason names them."""
    engine = ledger_engine(blocks=8, step_tokens=200)
    ask(engine, prompt=32, count=1)
    drain(engine)
    ask(engine, prompt=80, count=20, first=1)
    engine.step()
    waiting, _ = ask(engine, prompt=60, count=10)  # begins with the same 32 tokens
    engine.step()
    assert engine.snapshot().blocks.cached == 2
    assert engine.scheduler.requests[waiting].why == "needs 2 blocks beside its 2 cached, 0 available"


class TestLatency:
    def test_the_earliest_deadline_runs_first(self) -> None:
        engine = ledger_engine(slots=1, policy="latency")
        for n, deadline in enumerate((None, 3.0, 0.5, 0.9)):
            ask(engine, prompt=4, count=1, first=n, deadline=deadline)
        drain(engine)
        assert [step.rows[0].request for step in steps(engine)] == [2, 3, 0, 1]

    def test_a_request_is_admitted_at_once_while_others_run(self) -> None:
        engine = ledger_engine(policy="latency")
        for n in range(3):
            ask(engine, prompt=10, count=30, first=n, deadline=30.0)
            engine.step()
            assert len(steps(engine)[-1].rows) == n + 1

    def test_more_deadlines_are_met_than_by_order_of_arrival(self) -> None:
        def met(policy: str) -> int:
            clock = Clock()
            engine = ledger_engine(policy=policy, slots=2, step_tokens=32, clock=clock)
            first = collect_events(engine, events.FirstToken)
            due = {n: 1.0 if n < 16 else 0.2 for n in range(20)}
            for n, deadline in due.items():
                ask(engine, prompt=60, count=4, first=n, deadline=deadline)
            while engine.busy:
                engine.step()
                clock.now += 0.01
            return sum(event.seconds <= due[event.request] for event in first)

        assert met("latency") > met("fcfs")


@pytest.mark.parametrize("depth", [0, 1])
def test_a_reply_that_ends_by_length_costs_no_extra_step(depth: int) -> None:
    engine = ledger_engine(depth=depth)
    ask(engine, prompt=10, count=5)
    drain(engine)
    assert sum(step.tokens for step in steps(engine)) == 10 + 5 - 1


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("allowed", [1, 5, 6])
def test_a_limit_below_the_tokens_so_far_ends_the_reply(depth: int, allowed: int) -> None:
    engine = ledger_engine(depth=depth)
    id, reply = ask(engine, prompt=10, count=50)
    for _ in range(5 + depth):
        engine.step()
    assert len(reply.tokens) == 5
    engine.update(id, max_tokens=allowed)
    drain(engine)
    assert reply.last is not None
    assert reply.last.finish is Finish.LENGTH
    assert reply.tokens == alone([0, *range(1, 10)], max(allowed, 5))
    assert engine.scheduler.pool.in_use == 0


def test_a_step_does_not_walk_a_long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ledger_engine(slots=2)
    for n in range(10_000):
        ask(engine, prompt=4, count=50, first=n % 900)
    engine.step()
    monkeypatch.setattr(WaitingQueue, "__iter__", lambda self: pytest.fail("the whole queue was walked"))
    for _ in range(20):
        assert engine.step()
    monkeypatch.undo()
    for request in list(engine.scheduler.requests):
        engine.abort(request)
    engine.scheduler.check()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_failing_step_fails_only_its_requests(depth: int) -> None:
    engine = ledger_engine(depth=depth, slots=2)
    _, first = ask(engine, prompt=10, count=5)
    _, second = ask(engine, prompt=10, count=5, first=1)
    _, waits = ask(engine, prompt=10, count=5, first=2)
    engine.runner.fails = lambda step: step.number == 2
    drain(engine)
    for reply in (first, second):
        assert reply.last is not None
        assert reply.last.finish is Finish.FAILED
        assert "simulated failure" in reply.last.error
    assert waits.tokens == alone([2, *range(1, 10)], 5)
    assert engine.scheduler.pool.in_use == 0
    assert engine.scheduler.pool.cached == 0  # blocks of the failed requests are not kept in the prefix cache


@pytest.mark.parametrize("depth", [0, 1])
def test_a_step_that_fails_during_a_swap_fails_only_its_requests(depth: int) -> None:
    engine = ledger_engine(blocks=6, host=6, preemption="swap", depth=depth)
    failed: list[Step] = []

    def while_swapping(step: Step) -> bool:
        if any(each.order.kind == "store" for each in engine.scheduler.transfers.in_flight.values()):
            failed.append(step)
        return len(failed) == 1 and failed[0] is step

    engine.runner.fails = while_swapping
    first, runs, gives_way = (ask(engine, prompt=30 - 4 * n, count=40, first=n)[1] for n in range(3))
    drain(engine)
    assert [row.request for row in failed[0].rows] == [1]  # the first one waits for the blocks being stored
    assert runs.last is not None
    assert runs.last.finish is Finish.FAILED
    assert first.tokens == alone([0, *range(1, 30)], 40)
    assert gives_way.tokens == alone([2, *range(1, 22)], 40)


def test_a_fork_fails_with_the_step_that_writes_its_blocks() -> None:
    engine = ledger_engine(depth=1, step_tokens=16)
    id, reply = ask(engine, prompt=60, count=10)
    engine.step()
    engine.step()  # the second chunk is in flight
    engine.fork(id, branch := Output(), SamplingParams(max_tokens=10, seed=5))
    _, other = ask(engine, prompt=10, count=3, first=1)
    collect = engine.runner.collect

    def broken(handle: list[int]) -> None:
        engine.runner.collect = collect
        raise RuntimeError("lost on the way")

    engine.runner.collect = broken
    drain(engine)
    for each in (reply, branch):
        assert each.last is not None
        assert each.last.finish is Finish.FAILED
        assert "lost on the way" in each.last.error
    assert other.tokens == alone([1, *range(1, 10)], 3)


@pytest.mark.parametrize(
    "bad", [{"priority": "x"}, {"priority": True}, {"deadline": "soon"}, {"deadline": math.nan}]
)
def test_a_bad_priority_or_deadline_is_refused_and_queues_nothing(bad: dict[str, object]) -> None:
    engine = ledger_engine(policy="latency")
    with pytest.raises(BadInput, match=next(iter(bad))):
        ask(engine, prompt=10, **bad)
    assert not engine.busy


class CountedRank:
    """A rank whose living instances can be counted."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: "CountedRank") -> bool:
        return self.number < other.number


def test_aborted_requests_leave_the_queue() -> None:
    engine, ranks = ledger_engine(slots=1), WeakSet[CountedRank]()

    def rank(request: Request) -> Any:
        ranks.add(each := CountedRank(request.id))
        return each

    engine.scheduler.waiting = WaitingQueue(rank)
    ask(engine, prompt=4, count=5)
    engine.step()
    ids = [ask(engine, prompt=4, first=n % 900)[0] for n in range(2000)]
    for id in ids[1:]:
        engine.abort(id)
    assert 0 < len(ranks) < 200
    drain(engine)
