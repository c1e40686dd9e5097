"""Replicas that Ray places: real Ray, two replicas, and the deaths of an engine and of its actor."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.api.commands import DrainReplica
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.api.events import Admitted, Event, PromptRouted, Queued
from engine.api.params import SamplingParams
from engine.dry import dry_engine
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.local import start_fleet
from engine.fleet.ray_cluster import cluster as ray_cluster
from engine.fleet.ray_cluster.cluster import LOCAL, RayCluster, reach
from engine.fleet.ray_cluster.spread import fits_one, spread
from engine.host.client import EngineClient
from engine.host.process import EngineProcess
from engine.host.stream import ReplyFailed
from engine.host.thread import EngineThread
from tests.cli.conftest import Run, run
from tests.fleet.running import end_whole, two_replies
from tests.runner.conftest import checkpoint, llama
from tests.runner.small import GREEDY, alone
from tests.waiting import becomes

__all__ = ["checkpoint", "llama", "run"]

LONG = SamplingParams(max_tokens=3000, seed=0, ignore_eos=True)  # until it is shortened
SHORT = SamplingParams(max_tokens=3, seed=0, ignore_eos=True)
CONFIG = EngineConfig(model="pocket", device="cpu", threads=1, blocks=256)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    if find_spec("ray") is None:  # not imported yet: it reads its variables when it is
        pytest.skip("Ray is not installed: pip install 'minichat[ray]'")
    made = RayCluster(LOCAL, 4)  # two places are left for an engine of two stages, and one that cannot start
    yield made
    made.close()


@pytest.fixture
def fleet(cluster: RayCluster, tmp_path: Path) -> Iterator[Fleet]:
    def start(config: EngineConfig, log: Path) -> EngineProcess:
        return EngineProcess(config, log, dry_rate=100.0, launch=cluster.launcher(config))

    made = start_fleet(cluster.shares(CONFIG, 2), start, tmp_path / "engine.log", 9, pauses=(0.0,))
    yield made
    made.close()


def states(fleet: Fleet) -> list[str]:
    return [each.state for each in fleet.snapshot().replicas]


def pid(fleet: Fleet, replica: int) -> int:
    found = fleet._replicas[replica].pid  # type: ignore[attr-defined]
    assert isinstance(found, int)
    return found


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def runs(process: int) -> bool:
    """Whether a process is there, and more than an exit code that has not been read."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def prompts_go_to_their_blocks(fleet: Fleet) -> None:
    seen = list[Event]()
    fleet.subscribe(seen.append)  # on engines that are as they were started
    prompts = [[*range(at, at + 161)] for at in (10, 400)]
    firsts = [fleet.submit(each, LONG) for each in prompts]
    homes = [each.id // NUMBERS for each in firsts]
    again = [fleet.submit([*each, 7], SHORT) for each in prompts]
    assert sorted(homes) == [0, 1]
    assert [each.result() and each.id // NUMBERS for each in again] == homes
    assert becomes(lambda: len([each for each in seen if isinstance(each, PromptRouted)]) == 4)
    found = [(each.cached, each.blocks) for each in seen if isinstance(each, PromptRouted)]
    assert found == [(0, 10), (0, 10), (10, 10), (10, 10)]
    assert end_whole(fleet, firsts)


def a_killed_engine_ends_its_own_streams_and_returns(fleet: Fleet) -> None:
    kept, lost = two_replies(fleet, LONG)
    os.kill(pid(fleet, 1), signal.SIGKILL)
    with pytest.raises(ReplyFailed, match=r"killed by SIGKILL .* its log is .*engine-1.log on "):
        lost.result()
    assert becomes(lambda: states(fleet) == ["ready", "ready"])
    assert end_whole(fleet, [kept]), "a reply of the other replica was cut"
    assert becomes(lambda: fleet.submit([*range(700, 740)], SHORT).result().tokens)


def an_engine_ends_with_its_actor(fleet: Fleet) -> None:
    kept, lost = two_replies(fleet, LONG)
    process = pid(fleet, 1)
    os.kill(parent(process), signal.SIGKILL)
    with pytest.raises(ReplyFailed, match="ended with its actor"):
        lost.result()
    assert becomes(lambda: not runs(process))
    assert becomes(lambda: states(fleet) == ["ready", "ready"] and pid(fleet, 1) != process)
    assert end_whole(fleet, [kept])


def a_drained_replica_gets_a_new_actor(fleet: Fleet) -> None:
    old = pid(fleet, 0)
    host = parent(old)
    fleet.send(DrainReplica(0)).result()
    assert becomes(lambda: pid(fleet, 0) != old and states(fleet) == ["ready", "ready"])
    assert becomes(lambda: not runs(old) and not runs(host))


def as_much_is_found_as_in_one_big_cache(fleet: Fleet) -> None:
    one = EngineThread(dry_engine(replace(CONFIG, blocks=512), rate=1000.0))
    try:
        big, parts = (share_found(each) for each in (one, fleet))
    finally:
        one.close()
    assert big > 0.6
    assert parts >= 0.9 * big


def share_found(client: EngineClient) -> float:
    """The share of the tokens of thirteen chats that was in a cache. In turn, chats would change replicas."""
    asked, cached = list[int](), list[int]()

    def note(event: Event) -> None:
        if isinstance(event, Queued):
            asked.append(event.prompt)
        elif isinstance(event, Admitted):
            cached.append(event.cached)

    end, draw = client.subscribe(note), random.Random(0)
    chats: list[list[int]] = [[] for _ in range(13)]
    for _ in range(6):
        for each in chats:
            each += [draw.randrange(1000) for _ in range(60)]
        for stream in [client.submit(each, SHORT) for each in chats]:
            stream.result()
    assert becomes(lambda: len(cached) == 78)
    end()
    return sum(cached) / sum(asked)


def it_says_what_the_cluster_cannot_give(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="2 replicas need 2 GPUs, and the cluster has 0"):
        cluster.shares(EngineConfig(model="pocket", device="cuda"), 2)
    with pytest.raises(BadInput, match="2 replicas need 8 GPUs"):
        cluster.shares(EngineConfig(model="pocket", device="cuda", tp=2, pp=2), 2)
    with pytest.raises(BadInput, match="which chooses the GPUs"):
        cluster.shares(EngineConfig(model="pocket", device="cuda:1"), 2)
    monkeypatch.setattr(ray_cluster, "PLACED_WITHIN", 0.3)
    with pytest.raises(EngineError, match="found no machine with 999 processors"):
        cluster.launcher(EngineConfig(model="pocket", device="cpu", threads=333, pp=3))(Path("engine.log"))


@pytest.mark.soak
def test_an_engine_of_two_stages_ends_with_one_of_them(
    cluster: RayCluster, llama: Path, tmp_path: Path
) -> None:
    config = EngineConfig(model=str(llama), device="cpu", threads=1, blocks=64, pp=2)
    engine = EngineProcess(config, tmp_path / "engine.log", launch=cluster.launcher(config))
    try:
        reply = engine.submit([1, 5, 9, 30], GREEDY).result().tokens
        assert [*reply] == alone(llama, [1, 5, 9, 30]).tokens
        stream = engine.submit([1, 5, 9], GREEDY.changed(max_tokens=200))
        next(iter(stream))
        processes = [each.pid for each in engine.snapshot().ranks]
        assert parent(processes[1]) == processes[0]
        os.kill(processes[1], signal.SIGKILL)
        with pytest.raises(ReplyFailed, match="rank 1 was killed by SIGKILL"):
            stream.result()
    finally:
        engine.close()
    assert becomes(lambda: not any(map(runs, processes)))


@pytest.mark.soak
def test_ranks_on_several_machines(cluster: RayCluster, llama: Path, tmp_path: Path) -> None:
    """Each rank is placed for itself, and all end with any of them."""
    config, launch = spread(cluster, EngineConfig(model=str(llama), device="cpu", threads=1, blocks=64, tp=2))
    engine = EngineProcess(config, tmp_path / "engine.log", launch=launch)
    try:
        reply = engine.submit([1, 5, 9, 30], GREEDY).result().tokens
        assert [*reply] == alone(llama, [1, 5, 9, 30]).tokens
        stream = engine.submit([1, 5, 9], GREEDY.changed(max_tokens=200))
        next(iter(stream))
        first, second = (each.pid for each in engine.snapshot().ranks)
        actors = [parent(first), parent(second)]
        assert actors[0] != actors[1]
        os.kill(actors[1], signal.SIGKILL)
        with pytest.raises(ReplyFailed, match=r"rank 1 on 127\.0\.0\.1 has closed its connections"):
            stream.result()
    finally:
        engine.close()
    assert becomes(lambda: not any(map(runs, (first, second, *actors))))


def test_ranks_are_on_one_machine_if_it_has_room_for_all() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 64.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert fits_one(nodes, "GPU", 4) and fits_one(nodes, "CPU", 64)
    assert not fits_one(nodes, "GPU", 5) and not fits_one(nodes, "CPU", 65)


def an_engine_that_cannot_start_says_why(cluster: RayCluster, tmp_path: Path) -> None:
    config = EngineConfig(model=str(tmp_path / "missing"), device="cpu", threads=1)
    with pytest.raises(EngineError, match="missing"):
        EngineProcess(config, tmp_path / "engine.log", launch=cluster.launcher(config))


def test_two_replicas(cluster: RayCluster, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, so that Ray starts once."""
    prompts_go_to_their_blocks(fleet)
    an_engine_ends_with_its_actor(fleet)
    it_says_what_the_cluster_cannot_give(cluster, monkeypatch)


@pytest.mark.soak  # each of these starts a process; fleets without Ray do the same in each run
def test_replicas_that_end_and_return(cluster: RayCluster, fleet: Fleet, tmp_path: Path) -> None:
    a_killed_engine_ends_its_own_streams_and_returns(fleet)
    as_much_is_found_as_in_one_big_cache(fleet)
    a_drained_replica_gets_a_new_actor(fleet)
    an_engine_that_cannot_start_says_why(cluster, tmp_path)


@pytest.mark.soak
def test_a_server_starts_and_ends_without_lines_of_ray(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'minichat[ray]'")
    words = ["serve", "--dry-run", "--ray", LOCAL, "--no-key", "--uds", str(tmp_path / "s")]
    command = [sys.executable, "-m", "minichat", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        try:
            assert lines[0].startswith("minichat: serving "), lines
        finally:
            process.terminate()
        lines += process.stderr.readlines()
    assert process.returncode == 0
    assert [line for line in lines if not line.startswith("minichat: ")] == []


def test_an_address_without_a_cluster_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match=f"cannot join the Ray cluster at 127.0.0.1:{port}: .*refused"):
        reach(f"127.0.0.1:{port}")
    with pytest.raises(BadInput, match="the address of the cluster's head"):
        reach("ray://head:10001")
    reach("auto")


def test_without_ray_one_sentence_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, out, err = run("serve", "--replicas", "2", "--ray", "--dry-run", "--port", "0")
    assert (code, out) == (2, "")
    assert err == "minichat: --ray requires Ray: pip install 'minichat[ray]'\n"


class BusyRay:
    """Cannot start until it has tried so often."""

    def __init__(self, failures: int, *, running: bool = False) -> None:
        self.left, self.running, self.starts, self.ends = failures, running, 0, 0

    def init(self, **settings: object) -> None:
        self.starts += 1
        if self.left:
            self.left -= 1
            raise RuntimeError("Failed to start GCS.\nmore")

    def is_initialized(self) -> bool:
        return self.running

    def shutdown(self) -> None:
        self.ends += 1


@pytest.mark.parametrize(("address", "failures", "starts"), [(LOCAL, 2, 3), (LOCAL, 9, 3), ("auto", 1, 1)])
def test_a_cluster_on_this_machine_is_started_again_if_another_took_its_port(
    monkeypatch: pytest.MonkeyPatch, address: str, failures: int, starts: int
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")  # restored afterwards
    monkeypatch.setitem(sys.modules, "ray", made := BusyRay(failures))  # type: ignore[arg-type]
    if failures < starts:
        assert ray_cluster._joined(address, 1) is made
    else:
        with pytest.raises(EngineError, match=r"cannot .*: Failed to start GCS\.$"):
            ray_cluster._joined(address, 1)
    assert made.starts == starts


def test_the_ray_of_the_program_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")
    monkeypatch.setitem(sys.modules, "ray", made := BusyRay(9, running=True))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="cannot start Ray"):
        ray_cluster._joined(LOCAL, 1)
    assert (made.starts, made.ends) == (1, 0)
