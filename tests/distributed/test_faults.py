"""A rank that fails, differs, or cannot start. test_restart.py has those that die and hang."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.snapshot import Load
from engine.distributed import team as team_module
from engine.distributed.collective import Interrupted, SharedMemoryCollective
from engine.distributed.crews import started
from engine.distributed.crews.gpu_names import gpus_of_rank
from engine.distributed.crews.started import RankCount, StartedRanks
from engine.distributed.identity import Gpu, identity
from engine.distributed.member import Member, beats
from engine.distributed.messages import error_to_wire
from engine.distributed.runner import RankedRunner
from engine.distributed.team import Team
from engine.distributed.waiting import readable
from engine.execution.load import LoadMeter
from engine.serving.engine import Engine
from tests.distributed import broken_rank
from tests.distributed.threads import ranked
from tests.runner.small import Watched, alone, ask, drain, engine_on, turn_until
from tests.waiting import becomes

PROMPT = [1, 5, 9, 30]
FOLDER = Path(__file__).parent


def watched(engine: Engine, watch: Callable[[torch.Tensor], object]) -> None:
    """Call `watch` before each forward of rank 0."""
    assert isinstance(engine.runner, RankedRunner)
    own = engine.runner.own
    own.model = Watched(own.model, watch)  # type: ignore[assignment]


def test_a_step_that_fails_on_one_rank_fails_on_all(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait in a sum, or are past it. All stop, and the next steps run on all of them again."""
    broken = (sys.executable, "-P", str(FOLDER / "broken_rank.py"))
    monkeypatch.setattr(started, "COMMAND", broken)
    files = len(os.listdir("/proc/self/fd"))
    engine = engine_on(llama, tp=2)
    assert isinstance(engine.runner, RankedRunner)
    try:
        for call in ("compute", "sample"):
            _, output = ask(engine, PROMPT)
            turn_until(engine, lambda output=output: output.finish)
            assert "rank 1: RuntimeError: call" in output.error and call in output.error
        fails = iter([True])

        def fail(ids: torch.Tensor) -> None:
            if len(ids) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            if next(fails, False):
                raise RuntimeError("rank 0 is broken")

        model = engine.runner.own.model
        watched(engine, fail)  # on rank 0, while rank 1 waits for it
        _, output = ask(engine, PROMPT)
        drain(engine)
        assert "RuntimeError: rank 0 is broken" in output.error
        engine.runner.own.model = model
        _, output = ask(engine, PROMPT)
        drain(engine)
        assert output.reply == alone(llama, PROMPT).reply
        for _ in range(broken_rank.DIFFERS):
            ask(engine, PROMPT)
        with pytest.raises(EngineDead, match="rank 1 sampled different tokens than rank 0 in step"):
            drain(engine)
    finally:
        engine.ranks.close()
    del engine
    assert len(os.listdir("/proc/self/fd")) <= files + 2


def test_a_step_launched_before_one_that_failed_is_not_collected_from_gpus(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sums may have been stopped half way, after which its tokens mean nothing."""
    monkeypatch.setattr(SharedMemoryCollective, "deferred", True)
    with ranked(llama, tp=2) as engine:
        assert isinstance(engine.runner, RankedRunner)
        ask(engine, PROMPT)
        step = engine.scheduler.schedule()
        assert step is not None
        before, own = engine.runner.launch(step), engine.runner.own
        with monkeypatch.context() as broken:
            broken.setattr(own, "launch", lambda step: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine.runner.launch(step)
        with pytest.raises(Interrupted, match="was stopped, because one beside it failed"):
            engine.runner.collect(before)


def other_rank(*frames: dict[str, object]) -> tuple[str, ...]:
    return sys.executable, "-P", str(FOLDER / "other_rank.py"), json.dumps(frames)


def test_a_rank_of_another_version_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        started, "COMMAND", other_rank({"hello": {"order of GPUs": "no GPU", "engine": "0.0"}})
    )
    with pytest.raises(
        EngineError, match=r"rank 1 has a different engine than rank 0: 0\.0 instead of \w{16}"
    ):
        engine_on(llama, tp=2)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_rank_with_another_model_is_refused(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Under the same name: another setting, or weights of other bytes."""
    other = copytree(llama, tmp_path / "other")
    if file == "config.json":
        settings = json.loads((other / file).read_text())
        (other / file).write_text(json.dumps(settings | {"rms_norm_eps": 0.5}))
    else:
        tensors = load_file(other / file)
        save_file({name: each.half() for name, each in tensors.items()}, other / file)
    config = EngineConfig(model=str(llama), tp=2)
    found = identity(config, ModelPlace("llama", other)) | {"kind of device": "cpu"}
    monkeypatch.setattr(started, "COMMAND", other_rank({"hello": found}))
    team = Team(config, ModelPlace("llama", llama), StartedRanks(RankCount(2), ()))
    try:
        with pytest.raises(EngineError, match=r"rank 1 has a different model than rank 0: \w{16} instead"):
            team.check_identities()
    finally:
        team.close()


def test_the_heart_of_a_busy_rank_beats_and_that_of_a_stopped_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slow work, such as compiling, is not death. It may hold Python's lock."""
    monkeypatch.setattr(started, "COMMAND", (sys.executable, "-P", str(FOLDER / "busy_rank.py")))
    ranks = StartedRanks(RankCount(2), ())
    try:
        (member,) = ranks.members
        for _ in range(10):
            assert readable(member.pulse.fileno(), 20.0) and beats(member.pulse)
        os.kill(member.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, member.process.pid, os.WSTOPPED)
        while readable(member.pulse.fileno(), 0.0):
            beats(member.pulse)  # those that were on the way
        assert not readable(member.pulse.fileno(), 0.1)
    finally:
        ranks.end()


def test_a_rank_with_another_order_of_gpus_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 of two is to have the second GPU under the number 0. It finds them as rank 0 does."""
    gpus = [Gpu("GPU-a", "NVIDIA H200"), Gpu("GPU-b", "NVIDIA H100")]
    found = identity(EngineConfig(model=str(llama)), ModelPlace("llama", llama), gpus)
    monkeypatch.setattr(started, "COMMAND", other_rank({"hello": found}))
    config = EngineConfig(model=str(llama), tp=2)
    seen = [gpus_of_rank(rank, 0, gpus) for rank in range(2)]
    team = Team(config, ModelPlace("llama", llama), StartedRanks(RankCount(2), ()), seen)
    try:
        with pytest.raises(
            EngineError,
            match=r"rank 1 has a different order of GPUs than rank 0: "
            r"GPU-a \(NVIDIA H200\), GPU-b \(NVIDIA H100\) instead of GPU-b .*, GPU-a",
        ):
            team.check_identities()
    finally:
        team.close()


def test_the_load_of_a_rank_is_that_of_its_own_gpu(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank finds its own first."""
    loads = {"GPU-a": Load(0.9, 300.0, 700.0), "GPU-b": Load(0.7, 200.0, 700.0)}
    monkeypatch.setattr(LoadMeter, "named", lambda uuid: LoadMeter(lambda: loads[uuid]))
    monkeypatch.setattr(started, "COMMAND", other_rank())
    gpus = [Gpu(uuid, "NVIDIA H200") for uuid in loads]
    seen = [gpus_of_rank(rank, 0, gpus) for rank in range(2)]
    config = EngineConfig(model=str(llama), tp=2)
    team = Team(config, ModelPlace("llama", llama), StartedRanks(RankCount(2), ()), seen)
    try:
        assert becomes(lambda: [each.load for each in team.views("cuda", {})] == [*loads.values()])
    finally:
        team.close()


def test_a_rank_that_cannot_start_is_named(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started, "COMMAND", (sys.executable, "-P", "-c", "raise SystemExit(3)"))
    with pytest.raises(EngineDead, match="rank 1 ended with exit code 3"):
        engine_on(llama, tp=2)


def test_the_reason_of_a_rank_that_ends_first_is_reported(
    llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 1 refuses its model and ends, while the engine waits for rank 2. That is no crash."""
    error = error_to_wire(1, BadInput("3 heads cannot be split"))
    monkeypatch.setattr(started, "COMMAND", other_rank({"hello": {}}, {"error": error}))
    monkeypatch.setattr(team_module, "check_same", lambda *given: None)
    monkeypatch.setattr(Team, "check_identities", _late(Team.check_identities))
    with pytest.raises(BadInput, match="rank 1: 3 heads cannot be split"):
        engine_on(llama, tp=4)
    assert "exit code" not in caplog.text


def test_it_is_also_reported_if_the_engine_has_not_told_all_ranks_what_to_do(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, tell = error_to_wire(1, BadInput("3 heads cannot be split")), Team._tell

    def late(team: Team, member: Member, value: Any) -> None:
        assert member.rank == 1 or becomes(lambda: team.lost)
        tell(team, member, value)

    monkeypatch.setattr(started, "COMMAND", other_rank({"hello": {}}, {"error": error}))
    monkeypatch.setattr(Team, "_tell", late)
    with pytest.raises(BadInput, match="rank 1: 3 heads cannot be split"):
        engine_on(llama, tp=4)


def _late(check: Callable[[Team], None]) -> Callable[[Team], None]:
    """Have the engine ask only after a rank has ended."""

    def late(team: Team) -> None:
        check(team)
        assert becomes(lambda: team.lost)
        team._reported(team.members[1], "nbytes", 10.0)

    return late


@pytest.mark.parametrize(("ranks", "problem"), [(3, "cannot be split over 3 ranks")])
def test_what_does_not_divide_is_refused_by_name(
    llama: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, problem: str
) -> None:
    monkeypatch.setattr(Team, "check_identities", lambda team: None)
    with pytest.raises(BadInput, match=problem):
        engine_on(llama, tp=ranks)
