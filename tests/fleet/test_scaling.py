"""How many replicas run: as many as the requests need, after a while."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from engine.api.commands import Command, DrainReplica, StartReplica
from engine.api.events import Handler
from engine.api.params import SamplingParams
from engine.api.snapshot import ReplicaView, Snapshot
from engine.fleet.scaling import DOWN_AFTER, UP_AFTER, Autoscaler
from engine.host.client import EngineClient, Sink
from tests.app.conftest import snapshot
from tests.cli.conftest import Run, run
from tests.fleet.running import Running
from tests.waiting import becomes

__all__ = ["run"]

LONG = SamplingParams(max_tokens=3000, seed=0, ignore_eos=True)


class Replicas(EngineClient):
    """A fleet of which only the snapshot matters."""

    def __init__(self, *states: str) -> None:
        self.now, self.sent = 0.0, list[Command[Any]]()
        self.states, self.requests = list(states), [0] * len(states)

    def snapshot(self) -> Snapshot:
        pairs = zip(self.states, self.requests, strict=True)
        views = (ReplicaView(n, state, "", "cpu", each, 0, 8, 0, 0) for n, (state, each) in enumerate(pairs))
        return snapshot(replicas=tuple(views))

    def send(self, command: Command[Any], sink: Sink | None = None) -> Future[Any]:
        self.sent.append(command)
        assert isinstance(command, DrainReplica | StartReplica)
        self.states[command.replica] = "draining" if isinstance(command, DrainReplica) else "ready"
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        raise NotImplementedError

    def close(self) -> None: ...

    def sends(self, scaler: Autoscaler, seconds: float) -> list[Command[Any]]:
        """What is sent at once, and after so many seconds."""
        self.sent.clear()
        scaler.look()
        assert not self.sent, "too early"
        self.now += seconds - 0.1
        scaler.look()
        assert not self.sent, "too early"
        self.now += 0.2
        scaler.look()
        return [*self.sent]


def scaler(fleet: Replicas, least: int = 1) -> Autoscaler:
    return Autoscaler(fleet, least, 10, lambda: fleet.now)


def test_replicas_start_when_there_are_more_requests_than_their_targets() -> None:
    fleet = Replicas("ready", "stopped", "draining", "stopped")
    fleet.requests = [15, 0, 6, 0]
    scaling = scaler(fleet)
    assert fleet.sends(scaling, UP_AFTER) == [StartReplica(2), StartReplica(1)], "21 requests: three replicas"
    scaling.look()
    fleet.now += 10 * DOWN_AFTER
    scaling.look()
    assert len(fleet.sent) == 2, "these are enough"


def test_the_least_busy_ones_are_drained_when_there_are_few_requests() -> None:
    fleet = Replicas("ready", "ready", "ready", "dead")
    fleet.requests = [3, 1, 2, 0]
    assert fleet.sends(scaler(fleet), DOWN_AFTER) == [DrainReplica(1, stop=True), DrainReplica(2, stop=True)]
    fleet = Replicas("ready", "ready", "ready")
    assert fleet.sends(scaler(fleet, least=2), DOWN_AFTER) == [DrainReplica(2, stop=True)]


def test_a_short_wave_changes_nothing() -> None:
    fleet = Replicas("ready", "stopped")
    scaling = scaler(fleet)
    for requests in (20, 0, 20, 0):
        fleet.requests[0] = requests
        scaling.look()
        fleet.now += 0.9 * UP_AFTER
    assert not fleet.sent


def test_on_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.fleet.scaling.UP_AFTER", 0.0)
    monkeypatch.setattr("engine.fleet.scaling.DOWN_AFTER", 0.0)
    running = Running(tmp_path, restarts=1)
    running.may_start.set()
    try:
        scaling = Autoscaler(running.fleet, 1, 2)
        scaling.look()
        assert becomes(lambda: sorted(running.states()) == ["ready", "stopped"])
        streams = [running.fleet.submit([*range(at, at + 40)], LONG) for at in (10, 200, 400)]
        for each in streams:
            next(iter(each))
        scaling.look()
        assert becomes(lambda: running.states() == ["ready", "ready"])
    finally:
        running.fleet.close()


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--min-replicas", "3"), "--min-replicas must be from 1 to --replicas, which is 2; got 3"),
        (("--min-replicas", "0"), "--min-replicas must be from 1 to --replicas, which is 2; got 0"),
        (("--target-requests", "5"), "--target-requests has no effect without --min-replicas"),
        (("--min-replicas", "1", "--target-requests", "0"), "--target-requests must be at least 1, got 0"),
    ],
)
def test_refusals(run: Run, words: tuple[str, ...], refusal: str) -> None:
    code, _, err = run("serve", "--replicas", "2", "--dry-run", "--port", "0", *words)
    assert (code, err) == (2, f"minichat: {refusal}\n")
