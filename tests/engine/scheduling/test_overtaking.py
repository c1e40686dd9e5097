"""Requests of higher priority preempt running ones, wait a step or two, and starve nothing."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import events
from engine.api.params import SamplingParams
from engine.scheduling.policy import PriorityPolicy
from engine.serving.engine import Engine
from tests.engine.ledger import Clock, alone, drain, ledger_engine
from tests.engine.workloads import EngineSetup, engine_setups, run
from tests.examples import examples
from tests.outputs import Output

LEVEL = PriorityPolicy.level


def ask(
    engine: Engine, priority: int, first: int = 0, prompt: int = 10, count: int = 40, *, seed: int = 0
) -> tuple[int, Output, list[int]]:
    """Submit a request and return its number, its reply, and the tokens that the reply must have."""
    tokens, reply = [first, *range(1, prompt)], Output()
    id = engine.submit(tokens, SamplingParams(max_tokens=count, seed=seed), reply, priority=priority)
    return id, reply, alone(tokens, count, seed)


def preemptions(engine: Engine) -> list[int]:
    """The requests that are preempted from now on, in order."""
    found: list[int] = []
    engine.bus.subscribe(
        lambda event: found.append(event.request) if isinstance(event, events.Preempted) else None
    )
    return found


def step_until_first_token(engine: Engine, reply: Output, most: int = 50) -> int:
    for count in range(1, most + 1):
        engine.step()
        engine.scheduler.check()
        if reply.tokens:
            return count
    raise AssertionError(f"no token after {most} steps")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("preemption", "most"), [("recompute", 1), ("swap", 3)])
@pytest.mark.parametrize("room", [{"slots": 4, "blocks": 64}, {"slots": 8, "blocks": 12}])
def test_a_higher_priority_waits_a_step_or_two_behind_a_full_batch(
    room: dict[str, int], preemption: str, most: int, depth: int
) -> None:
    engine = ledger_engine(**room, host=64, depth=depth, policy="priority", preemption=preemption)
    batch = [ask(engine, 1, first, prompt=40) for first in range(4)]  # 3 blocks each
    for _ in range(6):
        engine.step()
    assert len(engine.scheduler.running) == 4
    gone = preemptions(engine)
    urgent = ask(engine, 0, first=9, count=4)
    assert step_until_first_token(engine, urgent[1]) <= most + depth
    assert gone == [3], "the youngest of the lowest priority"
    drain(engine)
    for _, reply, expected in (*batch, urgent):
        assert reply.tokens == expected


def test_several_of_higher_priority_start_in_one_step() -> None:
    engine = ledger_engine(slots=4, policy="priority")
    for first in range(4):
        ask(engine, 1, first)
    engine.step()
    urgent = [ask(engine, 0, first)[1] for first in range(5, 8)]
    engine.step()
    assert all(reply.tokens for reply in urgent)


def test_a_prompt_of_higher_priority_goes_before_the_rest_of_a_long_one() -> None:
    engine = ledger_engine(step_tokens=16, policy="priority")
    _, long, expected = ask(engine, 1, prompt=400, count=4)
    engine.step()
    _, urgent, _ = ask(engine, 0, first=1, count=4)
    assert step_until_first_token(engine, urgent) == 1
    assert not long.tokens
    drain(engine)
    assert long.tokens == expected


@pytest.mark.parametrize(("policy", "priority"), [("priority", 1), ("priority", 2), ("fcfs", 0)])
def test_equal_and_lower_priorities_preempt_nothing(policy: str, priority: int) -> None:
    engine = ledger_engine(slots=1, policy=policy)
    ask(engine, 1)
    engine.step()
    gone = preemptions(engine)
    _, reply, _ = ask(engine, priority, first=1)
    assert step_until_first_token(engine, reply) == 40
    assert not gone


@pytest.mark.parametrize(("priority", "preempted"), [(-1, [1, 0]), (0, [])])
def test_as_many_as_needed_are_preempted_and_none_in_vain(priority: int, preempted: list[int]) -> None:
    engine = ledger_engine(blocks=12, step_tokens=200, policy="priority")
    ask(engine, 0, prompt=100)  # 7 blocks
    ask(engine, 1, first=1, prompt=30)  # 2 blocks, too few
    engine.step()
    gone = preemptions(engine)
    _, urgent, _ = ask(engine, priority, first=2, prompt=150)  # 10 blocks
    engine.step()
    assert gone == preempted
    assert bool(urgent.tokens) is bool(preempted)
    drain(engine)


def test_a_preempted_request_resumes_before_new_ones_of_its_priority() -> None:
    engine = ledger_engine(slots=1, policy="priority")
    first, *_ = ask(engine, 1)
    engine.step()
    urgent, *_ = ask(engine, 0, first=1, count=3)
    new, *_ = ask(engine, 1, first=2)
    drain(engine)
    order = [row.request for step in engine.runner.steps for row in step.rows]
    assert list(dict.fromkeys(order[1:])) == [urgent, first, new]


@pytest.mark.parametrize(("waited", "preempted"), [(LEVEL - 1, True), (LEVEL + 1, False)])
def test_a_level_counts_as_much_as_a_minute_of_waiting(waited: float, preempted: bool) -> None:
    clock = Clock()
    engine = ledger_engine(slots=1, policy="priority", clock=clock)
    gone = preemptions(engine)
    old, *_ = ask(engine, 1)
    clock.now += waited
    engine.step()
    ask(engine, 0, first=1)
    engine.step()
    assert gone == [old] * preempted


def test_a_stream_of_higher_priority_does_not_starve_a_request() -> None:
    clock = Clock()
    engine = ledger_engine(slots=1, policy="priority", clock=clock)
    _, background, expected = ask(engine, 1, count=10)
    while background.last is None:
        ask(engine, 0, first=1, prompt=4, count=1)  # enough to keep the only slot busy
        engine.step()
        clock.now += 1.0
        assert clock.now < LEVEL + 15
    assert background.tokens == expected
    drain(engine)


@dataclass(frozen=True)
class Arrival:
    """A request of a random workload."""

    at: int  # the step
    priority: int
    prompt: int
    count: int


arrivals = st.lists(
    st.builds(Arrival, st.integers(0, 20), st.integers(-2, 2), st.integers(1, 40), st.integers(1, 20)),
    min_size=1,
    max_size=14,
)


@examples(15)
@given(engine_setups([6, 7, 9, 16, 40]), arrivals, st.sampled_from([0.05, 20.0]))
def test_random_arrivals_preempt_by_priority_and_all_replies_are_right(
    place: EngineSetup, work: list[Arrival], pace: float
) -> None:
    """At the slower pace, waiting counts as much as the priorities."""
    engine = place.engine()
    asked: dict[int, tuple[Arrival, Output, list[int]]] = {}

    def before(step: int) -> None:
        engine.clock.now += pace
        for number, each in enumerate(work):
            if each.at == step:
                id, *reply = ask(engine, each.priority, number, each.prompt, each.count, seed=number)
                asked[id] = (each, *reply)

    run(engine, 21, before)
    assert len(asked) == len(work)
    for _, reply, expected in asked.values():
        assert reply.tokens == expected


@examples(13)
@given(engine_setups([9, 16, 40]), st.lists(st.integers(5, 60), min_size=1, max_size=12), st.integers(0, 12))
def test_the_highest_priority_starts_within_a_few_steps_whatever_runs(
    place: EngineSetup, prompts: list[int], after: int
) -> None:
    engine = place.engine()
    others = [ask(engine, 1, first, prompt, 30)[1:] for first, prompt in enumerate(prompts)]
    for _ in range(after):
        engine.step()
        engine.clock.now += 0.05
    _, urgent, expected = ask(engine, 0, first=99, prompt=5, count=3)
    if place.policy == "priority":
        assert step_until_first_token(engine, urgent) <= 5
    drain(engine)
    assert urgent.tokens == expected
    assert all(reply.tokens == right for reply, right in others)


def test_a_block_to_be_copied_is_not_loaded_over() -> None:
    """A fork is overtaken in the step in which its parent copies the block that they share.

    The tier is full, so its block is free at once, and the request that overtakes it loads its own.
    """
    engine = ledger_engine(blocks=6, host=1, slots=4, preemption="swap", prefix_cache=False)
    engine.submit([7] * 41, SamplingParams(max_tokens=10), Output())
    replies = [Output() for _ in range(3)]
    for step in range(13):
        if step == 3:
            returns = engine.submit([9], SamplingParams(max_tokens=6, seed=0), replies[0])
        if step == 7:
            parent = engine.submit([0], SamplingParams(max_tokens=2, seed=0), replies[1], priority=1)
        if step == 8:
            engine.preempt(returns)
            engine.fork(parent, replies[2], SamplingParams(max_tokens=2, seed=0))
        engine.step()
    drain(engine)
    assert [each.tokens for each in replies] == [alone([9], 6), alone([0], 2), alone([0], 2)[1:]]
