"""A replica that an operator drains: it finishes its own requests, takes none, and stops or starts again."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.api.commands import Abort, DrainReplica, SetSwitch, StartReplica
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, Ending, EngineDead
from engine.api.params import SamplingParams
from engine.dry import dry_engine
from engine.fleet.fleet import NUMBERS, Fleet
from engine.host.packing import unpacked
from engine.host.process import EngineProcess
from engine.host.restarting import RestartingEngine
from engine.host.thread import EngineThread
from tests.fleet.running import Running, end_whole, two_replies
from tests.server.conftest import listening
from tests.waiting import LIMIT, becomes

LONG = SamplingParams(max_tokens=3000, seed=0, ignore_eos=True)  # until it is shortened
SHORT = SamplingParams(max_tokens=3, seed=0, ignore_eos=True)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path, restarts=1)
    made.may_start.set()
    yield made
    made.fleet.close()


def test_it_finishes_its_requests_and_starts_again(running: Running) -> None:
    fleet = running.fleet
    fleet.send(SetSwitch("prefix_cache", False)).result()
    streams, old = two_replies(fleet, LONG), running.pids[1]
    fleet.send(DrainReplica(1)).result()
    assert running.states() == ["ready", "draining"]
    others = [fleet.submit([*range(at, at + 40)], SHORT) for at in (205, 400, 600)]  # it has blocks of one
    assert [each.result() and each.id // NUMBERS for each in others] == [0, 0, 0]
    with pytest.raises(Ending, match="replica 1 is draining"):
        fleet.fork(streams[1].id).result()
    assert end_whole(fleet, [fleet.fork(streams[0].id)])
    assert running.pids[1] == old, "it did not wait for its request"
    assert end_whole(fleet, streams), "a reply was cut"
    assert becomes(lambda: running.states() == ["ready", "ready"])
    assert running.pids[1] != old
    assert becomes(lambda: fleet.submit([*range(700, 740)], SHORT).id // NUMBERS == 1)
    switches = fleet._replicas[1].snapshot().switches
    assert not next(each.on for each in switches if each.name == "prefix_cache"), "as the others"
    assert running.changes() == [(1, "draining"), (1, "restarting"), (1, "ready")]


def test_it_stops_until_it_is_started(running: Running) -> None:
    fleet = running.fleet
    fleet.send(DrainReplica(0, stop=True)).result()
    assert becomes(lambda: running.states() == ["stopped", "ready"])
    assert fleet.snapshot().state == "ready"
    assert fleet.submit([1, 2, 3], SHORT).result().tokens
    with pytest.raises(BadInput, match="replica 0 does not run"):
        fleet.send(DrainReplica(0)).result()
    fleet.send(DrainReplica(1, stop=True)).result()
    assert becomes(lambda: running.states() == ["stopped", "stopped"])
    assert fleet.snapshot().state == "stopped"
    with pytest.raises(EngineDead, match=r"was stopped$"):
        fleet.submit([1, 2, 3], SHORT).result()
    running.may_start.clear()
    fleet.send(StartReplica(1)).result()
    with pytest.raises(EngineDead, match=r"was stopped; it is being restarted$"):
        fleet.submit([1, 2, 3], SHORT).result()
    running.may_start.set()
    assert becomes(lambda: running.states() == ["stopped", "ready"])
    assert becomes(lambda: fleet.submit([1, 2, 3], SHORT).result().tokens)


def test_a_drain_can_be_taken_back(running: Running) -> None:
    fleet, old = running.fleet, dict(running.pids)
    streams = two_replies(fleet, LONG)
    for replica in (0, 1):
        fleet.send(DrainReplica(replica, stop=True)).result()
    assert fleet.snapshot().state == "draining"
    with pytest.raises(Ending, match="draining"):
        fleet.submit([1, 2, 3], SHORT).result()
    fleet.send(StartReplica(1)).result()
    assert running.states() == ["draining", "ready"]
    assert becomes(lambda: fleet.submit([*range(700, 740)], SHORT).result().tokens)
    assert end_whole(fleet, streams)
    assert becomes(lambda: running.states() == ["stopped", "ready"])
    assert running.pids == old


def test_a_start_while_its_process_ends_is_not_lost(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, may_end, end = threading.Event(), threading.Event(), RestartingEngine.stop_process

    def held(engine: RestartingEngine) -> None:
        ending.set()
        assert may_end.wait(LIMIT)
        end(engine)

    monkeypatch.setattr(RestartingEngine, "stop_process", held)
    fleet, old = running.fleet, running.pids[0]
    fleet.send(DrainReplica(0, stop=True)).result()
    assert ending.wait(LIMIT)
    fleet.send(StartReplica(0)).result()
    may_end.set()
    assert becomes(lambda: running.pids[0] != old)
    assert becomes(lambda: running.states() == ["ready", "ready"])


def test_what_ends_its_last_request_is_answered_before_its_process_ends(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine ends the reply first, then answers."""
    ending, take, end = threading.Event(), EngineProcess._take, RestartingEngine.stop_process
    answered: list[bool] = []

    def late(process: EngineProcess, frame: dict[str, Any]) -> None:
        ends = any(delta.last for _, delta in (unpacked(frame["deltas"]) if "deltas" in frame else ()))
        answers = frame.pop("answers", ()) if ends else ()
        take(process, frame)
        if answers:
            ending.wait(0.1)
            take(process, {"answers": answers})

    def noting(engine: RestartingEngine) -> None:
        answered.append(aborting.done())
        ending.set()
        end(engine)

    monkeypatch.setattr(EngineProcess, "_take", late)
    monkeypatch.setattr(RestartingEngine, "stop_process", noting)
    fleet = running.fleet
    streams = two_replies(fleet, LONG)
    fleet.send(DrainReplica(1, stop=True)).result()
    aborting = fleet.send(Abort((streams[1].id,)))
    assert becomes(lambda: answered)
    assert answered == [True]


def test_unknown_replicas_and_engines_of_this_process_are_refused() -> None:
    alone, other = (EngineThread(dry_engine(EngineConfig(model="pocket", blocks=64))) for _ in range(2))
    with pytest.raises(BadInput, match="--replicas"):
        alone.send(DrainReplica(0)).result()
    threads = Fleet({0: alone, 1: other})
    with pytest.raises(BadInput, match="there is no replica 7; the fleet has 0, 1"):
        threads.send(DrainReplica(7)).result()
    with pytest.raises(BadInput, match="no process of its own"):
        threads.send(StartReplica(0)).result()
    threads.close()


@pytest.mark.soak
def test_over_http(running: Running) -> None:
    with (
        listening(running.fleet, keys=()) as (port, _),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):

        def states() -> list[str]:
            return [each["state"] for each in client.get("/engine").json()["replicas"]]

        body = {"replica": 1, "stop": True}
        assert client.post("/engine/commands/drain_replica", json=body).status_code == 200
        assert becomes(lambda: states() == ["ready", "stopped"])
        assert client.get("/health").status_code == 200
        assert client.post("/engine/commands/start_replica", json={"replica": 1}).status_code == 200
        assert becomes(lambda: states() == ["ready", "ready"])
        assert client.post("/engine/commands/drain_replica", json={"replica": "x"}).status_code == 400
