"""A fleet of processes behind the server: what it shares out, and what the death of one ends."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.api.commands import SetSwitch
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineDead
from engine.api.events import Died, Finished, ReplicaChanged
from engine.api.params import SamplingParams
from engine.fleet import local
from engine.fleet.fleet import NUMBERS
from engine.fleet.local import shares, start_fleet
from engine.host.process import EngineProcess
from engine.host.stream import ReplyFailed
from tests.cli.conftest import Run, run
from tests.fleet.running import Running, begun, end_whole
from tests.server.conftest import listening
from tests.waiting import becomes

__all__ = ["run"]

LONG = SamplingParams(max_tokens=3000, seed=0, ignore_eos=True)  # until it is shortened
SHORT = SamplingParams(max_tokens=3, seed=0)


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(tmp_path, getattr(request, "param", 1))
    yield made
    made.may_start.set()
    made.fleet.close()


def test_a_killed_replica_ends_its_own_streams_and_returns(running: Running) -> None:
    fleet = running.fleet
    fleet.send(SetSwitch("prefix_cache", False)).result()
    streams = [begun(fleet, [*range(at, at + 40)], LONG) for at in (10, 200, 400, 600)]
    lost = [each for each in streams if each.id // NUMBERS == 1]
    assert len(lost) == 2
    os.kill(running.pids[1], signal.SIGKILL)
    for each in lost:
        with pytest.raises(ReplyFailed, match="killed by SIGKILL"):
            each.result()
    assert becomes(lambda: running.states() == ["ready", "restarting"])
    assert fleet.snapshot().state == "ready"
    ended = {each.request for each in running.of(Finished) if isinstance(each, Finished)}
    assert ended == {each.id for each in lost}
    others = [fleet.submit([*range(at, at + 40)], SHORT) for at in (30, 230, 430)]
    assert [each.result() and each.id // NUMBERS for each in others] == [0, 0, 0]
    running.may_start.set()
    assert becomes(lambda: running.states() == ["ready", "ready"])
    assert becomes(lambda: fleet.submit([*range(700, 740)], SHORT).id // NUMBERS == 1), (
        "it gets prompts again"
    )
    switches = fleet._replicas[1].snapshot().switches
    assert not next(each.on for each in switches if each.name == "prefix_cache"), "as the others"
    assert end_whole(fleet, set(streams) - set(lost)), "a reply of the other replica was cut"
    states = [each.state for each in running.of(ReplicaChanged) if isinstance(each, ReplicaChanged)]
    assert states == ["restarting", "ready"]
    assert not running.of(Died)


@pytest.mark.parametrize("running", [0], indirect=True)
def test_the_fleet_is_dead_when_all_replicas_are(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    os.kill(running.pids[0], signal.SIGKILL)
    assert becomes(lambda: running.states() == ["dead", "ready"])
    [line] = [each for each in caplog.messages if each.startswith("replica 0")]
    assert line.endswith("; it is not started again by itself")
    assert running.fleet.submit([1, 2, 3], SHORT).result().tokens
    assert not running.of(Died)
    os.kill(running.pids[1], signal.SIGKILL)
    assert becomes(lambda: running.of(Died))
    shot = running.fleet.snapshot()
    assert shot.state == "dead"
    assert "killed by SIGKILL" in shot.error
    with pytest.raises(EngineDead, match="killed by SIGKILL"):
        running.fleet.submit([1, 2, 3], SHORT).result()


def test_a_stopped_replica_does_not_stop_the_snapshots(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.fleet.fleet.ANSWERS_WITHIN", 0.2)
    os.kill(running.pids[1], signal.SIGSTOP)
    try:
        assert becomes(lambda: running.states() == ["ready", "no answer"])
        assert running.fleet.snapshot().state == "ready"
    finally:
        os.kill(running.pids[1], signal.SIGCONT)
    assert becomes(lambda: running.states() == ["ready", "ready"])


def test_the_server_over_a_fleet(running: Running) -> None:
    with listening(running.fleet, keys=()) as (port, _):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            body = {"prompt": [*range(10, 60)], "max_tokens": 3000, "ignore_eos": True, "stream": True}
            with (
                client.stream("POST", "/v1/completions", json=body) as first,
                client.stream(
                    "POST", "/v1/completions", json=body | {"prompt": [*range(200, 250)]}
                ) as second,
            ):
                lines, others = first.iter_lines(), second.iter_lines()
                next(lines)
                next(others)
                os.kill(running.pids[0], signal.SIGKILL)
                assert any("killed by SIGKILL" in line for line in lines)
                assert "choices" in next(line for line in others if line)
                assert client.get("/health").json() == {"status": "ready"}
                replicas = client.get("/engine").json()["replicas"]
                assert [each["state"] for each in replicas] == ["restarting", "ready"]
                assert replicas[1]["running"] == 1
            text = client.get("/metrics").text
        found = re.search(r'request_success_total\{[^}]*finished_reason="error"\} (\d+)', text)
        assert found
        assert found[1] == "1"


class TestDevices:
    def test_cpu_replicas_share_the_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
        parts = shares(EngineConfig(model="pocket", device="cpu"), 3)
        assert [each.threads for each in parts] == [4, 4, 4]
        kept = shares(EngineConfig(model="pocket", device="cpu", threads=2), 3)
        assert [each.threads for each in kept] == [2, 2, 2]

    def test_each_replica_has_its_own_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "gpu_count", lambda: 8)
        parts = shares(EngineConfig(model="pocket", tp=2), 4)
        assert [each.device for each in parts] == ["cuda:0", "cuda:2", "cuda:4", "cuda:6"]
        parts = shares(EngineConfig(model="pocket", device="cuda:5"), 3)
        assert [each.device for each in parts] == ["cuda:5", "cuda:6", "cuda:7"]
        with pytest.raises(BadInput, match=r"3 replicas need 6 GPUs, and this machine has 8, of which 4 are"):
            shares(EngineConfig(model="pocket", device="cuda:4", tp=2), 3)
        parts = shares(EngineConfig(model="pocket", tp=2, pp=2), 2)
        assert [each.device for each in parts] == ["cuda:0", "cuda:4"]

    def test_gpus_are_those_that_the_environment_allows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for value, count in ("", 0), ("-1", 0), ("3", 1), ("GPU-a,GPU-b", 2):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
            assert local.gpu_count() == count


def test_one_replica_that_cannot_start_ends_the_others(tmp_path: Path) -> None:
    made: list[EngineProcess] = []

    def start(config: EngineConfig, log: Path) -> EngineProcess:
        if config.first_request:
            raise BadInput("no such device")
        made.append(EngineProcess(config, log, dry_rate=100.0))
        return made[0]

    with pytest.raises(BadInput, match="no such device"):
        start_fleet([EngineConfig(model="pocket", blocks=64)] * 2, start, tmp_path / "engine.log", 0)
    assert made[0].error == "the engine was closed"


def test_the_number_of_replicas_is_checked(run: Run) -> None:
    for count in ("0", "65"):
        ended = run("serve", "--replicas", count)
        assert (ended.code, "--replicas must be from 1 to 64" in ended.err) == (2, True)
