"""Policies by name, and the error for a plugin whose policy is incomplete."""

from contextlib import closing
from importlib.metadata import EntryPoint

import pytest

from engine.api.commands import SetLatencyTarget
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineDead
from engine.api.params import SamplingParams
from engine.api.request import Request
from engine.dry import dry_engine
from engine.host.thread import EngineThread
from engine.scheduling import policy


class IncompletePolicy:
    """A policy without `rank`."""

    name = "half"


def test_the_error_for_an_incomplete_policy_names_the_missing_method(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("half", f"{__name__}:IncompletePolicy", policy.GROUP)]
    monkeypatch.setattr(policy, "entry_points", lambda group: points)
    assert policy.names() == ["fcfs", "half", "latency", "priority"]
    with pytest.raises(BadInput, match="policy 'half' is not usable: its class lacks rank"):
        policy.choose("half")
    assert "half" not in policy.POLICIES


class FailingPolicy:
    """A policy whose `rank` has a defect."""

    name = "fails"

    def rank(self, request: Request) -> tuple[float, ...]:
        raise ValueError("no such field")


def test_a_policy_that_cannot_be_loaded_is_not_listed_as_available(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("gone", f"{__name__}:GonePolicy", policy.GROUP)]
    monkeypatch.setattr(policy, "entry_points", lambda group: points)
    assert policy.why_not("fcfs") is None
    assert "policy 'gone' cannot be loaded" in (policy.why_not("gone") or "")
    with pytest.raises(BadInput, match=r"available: fcfs, latency, priority$"):
        policy.choose("other")


def test_the_sender_of_a_request_learns_what_is_wrong_with_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policy.POLICIES, "fails", FailingPolicy)
    with closing(EngineThread(dry_engine(EngineConfig(model="pocket", policy="fails")))) as host:
        stream = host.submit([1, 2], SamplingParams(max_tokens=1))
        why = r"the engine has stopped: ValueError: no such field \(test_policy.py:\d+, in rank\)"
        with pytest.raises(EngineDead, match=why):
            stream.accepted.result()


def test_the_target_holds_for_requests_that_arrive_after_it_was_set() -> None:
    latency = policy.choose("latency", 2.0)
    assert isinstance(latency, policy.LatencyPolicy)

    def due(arrived: float, deadline: float | None = None) -> float:
        params = SamplingParams()
        request = Request(0, [1], 1, params, 0, 9, arrived=arrived, deadline=deadline)
        return float(latency.rank(request)[0])

    assert (due(0.0), due(5.0), due(5.0, 5.1)) == (2.0, 7.0, 5.1)
    policy.set_latency_target(latency, 0.5, 4.0)
    policy.set_latency_target(latency, 0.25, 4.0)
    policy.set_latency_target(latency, 9.0, 6.0)
    assert (due(0.0), due(4.0), due(5.0), due(6.0), due(6.0, 6.1)) == (2.0, 4.25, 5.25, 15.0, 6.1)
    assert policy.latency_target(policy.choose("fcfs", 2.0)) is None
    with pytest.raises(BadInput, match="the policy fcfs has no target"):
        policy.set_latency_target(policy.choose("fcfs", 2.0), 0.5, 4.0)


def test_the_target_is_an_option_and_a_command() -> None:
    engine = dry_engine(EngineConfig(model="pocket", policy="latency", latency_target=7.0))
    rank = engine.scheduler.policy.rank
    request = Request(0, [1], 1, SamplingParams(), 0, 9, arrived=engine.clock())
    with closing(EngineThread(engine)) as host:
        assert rank(request)[0] == request.arrived + 7.0
        assert host.snapshot().latency_target == 7.0
        host.send(SetLatencyTarget(0.5)).result()
        assert host.snapshot().latency_target == 0.5
        later = Request(1, [1], 1, SamplingParams(), 0, 9, arrived=engine.clock())
        assert (rank(request)[0], rank(later)[0]) == (request.arrived + 7.0, later.arrived + 0.5)


@pytest.mark.parametrize("name", ["fcfs", "priority", "latency"])
def test_rows_of_a_search_are_ranked_before_requests_that_came_after_it(name: str) -> None:
    params, rank = SamplingParams(), policy.choose(name).rank
    search, later, row = (
        Request(id, [1], 1, params, 0, 9, arrived=arrived, group=group)
        for id, arrived, group in ((0, 1.0, 0), (1, 2.0, -1), (2, 1.0, 0))
    )
    assert rank(search) < rank(row) < rank(later)


@pytest.mark.parametrize("name", ["fcfs", "priority", "latency"])
def test_a_search_that_was_preempted_ends_before_requests_that_came_after_it(name: str) -> None:
    with closing(dry_engine(EngineConfig(model="pocket", blocks=40, host_blocks=200, policy=name))) as engine:
        ended = list[str]()

        def submit(called: str, params: SamplingParams) -> None:
            engine.submit(range(1, 433), params, lambda delta: ended.append(called) if delta.last else None)

        submit("search", SamplingParams(max_tokens=180, beams=4, temperature=0, ignore_eos=True))
        for called in ("second", "third"):
            submit(called, SamplingParams(max_tokens=150, ignore_eos=True))
        preempted = 0
        while engine.step():
            preempted += any(each.preemptions for each in engine.scheduler.requests.values())
        assert preempted
        assert ended[0] == "search"
