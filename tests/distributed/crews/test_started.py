"""The processes of ranks start before torch is imported, and end if the engine does not start."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import BadInput
from engine.distributed import team
from engine.distributed.crews import gpu_names, started
from engine.distributed.crews.started import RankCount, StartedRanks, start_early, started_ranks
from engine.distributed.identity import Gpu
from engine.host.launching import Ahead
from engine.start import start
from tests.runner.small import engine_on

WAITS = (sys.executable, "-c", "import time; time.sleep(60)")


def test_starting_them_takes_no_torch() -> None:
    code = "import sys, engine.start, engine.host.launching; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize(
    ("device", "allowed", "seen"),
    [
        ("cpu", "0,1", []),
        ("auto", "0,1", [["0", "1"], ["1", "0"]]),
        ("cuda:1", "GPU-a, GPU-b,GPU-c", [["GPU-a", "GPU-b", "GPU-c"], ["GPU-a", "GPU-c", "GPU-b"]]),
        ("cuda:1", "0,1", []),  # too few, which the engine reports
        ("cuda:x", "", []),
    ],
)
def test_each_rank_has_its_gpu_under_the_engines_number(
    device: str, allowed: str, seen: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert RankCount(tp=2, device=device).visible() == seen


def test_gpus_are_counted_by_their_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have some of the machine's, which it numbers from 0."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_names, "_DEVICES", tmp_path)
    for name in ("nvidia3", "nvidia12", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpu_names.gpu_names() == ["0", "1"]


def test_only_ranks_of_this_machine_are_started() -> None:
    assert started_ranks(EngineConfig(model="m")) is None
    far = EngineConfig(model="m", tp=2, meet="127.0.0.1:7000:secret")
    assert started_ranks(far) is None
    assert Ahead.of(far)[2:] == (1, 1)
    assert Ahead.of(EngineConfig(model="m", tp=2, device="cpu")) == ("cpu", 0, 2, 1)


def test_those_that_were_started_early_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started, "COMMAND", WAITS)
    files = len(os.listdir("/proc/self/fd"))
    config = EngineConfig(model="m", tp=3, device="cpu")
    start_early(RankCount.of(config))
    pids = [member.process.pid for member in next(iter(started._early.values())).members]
    ranks = started_ranks(config)
    assert ranks is not None and [member.process.pid for member in ranks.members] == pids
    other = started_ranks(config)
    assert other is not None and other.members[0].process.pid not in pids
    for each in (ranks, other):
        each.end()
        each.end()  # does nothing
    assert len(os.listdir("/proc/self/fd")) <= files


def test_they_end_if_the_engine_does_not_start(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[StartedRanks]()
    monkeypatch.setattr(
        "engine.start.started_ranks", lambda config: made.append(started_ranks(config)) or made[0]
    )
    with pytest.raises(BadInput, match="device 'gpu' is unknown"):
        engine_on(llama, tp=2, device="gpu")
    assert made[0].members[0].process.wait(0) < 0


def test_ranks_on_gpus_that_torch_does_not_find_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the other way round: where the driver lists no GPUs, but torch finds some."""
    monkeypatch.setattr(started, "COMMAND", WAITS)
    monkeypatch.setattr(team, "gpus_of_ranks", lambda config: gpus)
    config = EngineConfig(model="m", tp=2, device="cpu")
    gpus: list[list[Gpu]] = []
    first = StartedRanks(RankCount.of(config), [["0", "1"], ["1", "0"]])
    made = team.team_of(config, ModelPlace("m", Path()), first)
    try:
        assert first.members[0].process.wait(0) < 0
        assert made.members[0].process.pid != first.members[0].process.pid
        assert not made.lost
    finally:
        made.close()


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ({"tp": 3}, "4 query heads and 2 KV heads cannot be split over 3 ranks"),
        ({"pp": 9}, "the model has 8 layers, so it can have at most 8 stages"),
    ],
)
def test_ranks_that_the_model_cannot_have_are_not_started(
    shape: dict[str, int], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(started, "spawn", None)
    with pytest.raises(BadInput, match=problem):
        start(EngineConfig(model="pocket", **shape))


def test_too_few_open_files_for_the_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(started, "pipes", none_left)
    start_early(RankCount(2))
    with pytest.raises(BadInput, match=r"2 ranks need more than \d+ open files"):
        started_ranks(EngineConfig(model="pocket", tp=2))
