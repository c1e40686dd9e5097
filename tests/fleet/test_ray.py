"""Replicas that Ray places: real Ray, two replicas, and the deaths of an engine and of its actor."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.api.commands import DrainReplica
from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.api.events import Event, PromptRouted
from engine.api.params import SamplingParams
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.local import start_fleet
from engine.fleet.ray_cluster import cluster as ray_cluster
from engine.fleet.ray_cluster.cluster import LOCAL, RayCluster
from engine.host.process import EngineProcess
from engine.host.stream import ReplyFailed, Stream
from tests.cli.conftest import Run, run
from tests.waiting import becomes

__all__ = ["run"]

LONG = SamplingParams(max_tokens=300, seed=0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=3, seed=0, ignore_eos=True)
CONFIG = EngineConfig(model="pocket", device="cpu", threads=1, blocks=256)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    if find_spec("ray") is None:  # not imported yet: it reads its variables when it is
        pytest.skip("Ray is not installed: pip install 'minichat[ray]'")
    made = RayCluster(LOCAL, 3)  # one place is left for the test of an engine that cannot start
    yield made
    made.close()


@pytest.fixture(scope="module")
def fleet(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    def start(config: EngineConfig, log: Path) -> EngineProcess:
        return EngineProcess(config, log, dry_rate=100.0, launch=cluster.launcher(config))

    made = start_fleet(
        cluster.shares(CONFIG, 2), start, tmp_path_factory.mktemp("ray") / "engine.log", 9, pauses=(0.0,)
    )
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


def two_replies(fleet: Fleet) -> list[Stream]:
    streams = [fleet.submit([*range(at, at + 40)], LONG) for at in (10, 200)]
    for each in streams:
        next(iter(each))
    assert [each.id // NUMBERS for each in streams] == [0, 1]
    return streams


def test_prompts_go_to_their_blocks(fleet: Fleet) -> None:
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


def test_a_killed_engine_ends_its_own_streams_and_returns(fleet: Fleet) -> None:
    kept, lost = two_replies(fleet)
    os.kill(pid(fleet, 1), signal.SIGKILL)
    with pytest.raises(ReplyFailed, match=r"killed by SIGKILL .* its log is .*engine-1.log on "):
        lost.result()
    assert becomes(lambda: states(fleet) == ["ready", "ready"])
    assert len(kept.result().tokens) == 299, "a reply of the other replica was cut"
    assert becomes(lambda: fleet.submit([*range(700, 740)], SHORT).result().tokens)


def test_an_engine_ends_with_its_actor(fleet: Fleet) -> None:
    kept, lost = two_replies(fleet)
    process = pid(fleet, 1)
    os.kill(parent(process), signal.SIGKILL)
    with pytest.raises(ReplyFailed, match="ended with its actor"):
        lost.result()
    assert becomes(lambda: not runs(process))
    assert becomes(lambda: states(fleet) == ["ready", "ready"] and pid(fleet, 1) != process)
    assert len(kept.result().tokens) == 299


def test_a_drained_replica_gets_a_new_actor(fleet: Fleet) -> None:
    old = pid(fleet, 0)
    host = parent(old)
    fleet.send(DrainReplica(0)).result()
    assert becomes(lambda: pid(fleet, 0) != old and states(fleet) == ["ready", "ready"])
    assert becomes(lambda: not runs(old) and not runs(host))


def test_what_the_cluster_cannot_give(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="2 replicas need 2 GPUs, and the cluster has 0"):
        cluster.shares(EngineConfig(model="pocket", device="cuda"), 2)
    with pytest.raises(BadInput, match="which chooses the GPUs"):
        cluster.shares(EngineConfig(model="pocket", device="cuda:1"), 2)
    monkeypatch.setattr(ray_cluster, "_PLACED_WITHIN", 0.3)
    with pytest.raises(EngineError, match="found no machine with 999 processors"):
        cluster.launcher(EngineConfig(model="pocket", device="cpu", threads=999))(Path("engine.log"))


def test_an_engine_that_cannot_start_says_why(cluster: RayCluster, tmp_path: Path) -> None:
    config = EngineConfig(model=str(tmp_path / "missing"), device="cpu", threads=1)
    with pytest.raises(EngineError, match="missing"):
        EngineProcess(config, tmp_path / "engine.log", launch=cluster.launcher(config))


def test_without_ray_one_sentence_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, out, err = run("serve", "--replicas", "2", "--ray", "--dry-run", "--port", "0")
    assert (code, out) == (2, "")
    assert err == "minichat: --ray requires Ray: pip install 'minichat[ray]'\n"
