"""A rank that dies, hangs, fails or differs ends with a reason, within a limit, and leaves nothing behind."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import torch

from engine.api.errors import BadInput, EngineDead, EngineError
from engine.api.events import Died
from engine.distributed.runner import RankedRunner
from engine.distributed.team import Team
from engine.host.thread import EngineThread
from engine.serving.engine import Engine
from tests.distributed import broken_rank
from tests.outputs import Output
from tests.runner.small import GREEDY, Watched, alone, ask, drain, engine_on, turn_until

PROMPT = [1, 5, 9, 30]
LONG = GREEDY.changed(max_tokens=200)
FOLDER = Path(__file__).parent


def team_of(engine: Engine) -> Team:
    assert isinstance(engine.ranks, Team)
    return engine.ranks


@contextmanager
def served(engine: Engine) -> Iterator[EngineThread]:
    host = EngineThread(engine)
    try:
        yield host
    finally:
        host.close()


def wait_for(holds: Callable[[], object], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not within {seconds:g} seconds"
        time.sleep(0.01)


def watched(engine: Engine, watch: Callable[[torch.Tensor], object]) -> None:
    """Call `watch` before each forward of rank 0."""
    assert isinstance(engine.runner, RankedRunner)
    own = engine.runner.own
    own.model = Watched(own.model, watch)  # type: ignore[assignment]


def test_a_rank_that_hangs_ends_every_request_and_the_engine(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Team, "silence", 1.0)
    shared, files = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    engine = engine_on(llama, tp=2)
    process = team_of(engine).members[0].process
    reason = "rank 1 did not respond for 1 seconds and was killed"
    died: list[Died] = []
    engine.bus.subscribe(lambda event: died.append(event) if isinstance(event, Died) else None)
    steps = count()
    watched(engine, lambda ids: next(steps) == 5 and os.kill(process.pid, signal.SIGSTOP))
    outputs = [Output() for _ in range(2)]
    for output in outputs:
        engine.submit(PROMPT, LONG, output)
    with served(engine) as host:
        wait_for(lambda: died)
        assert reason in died[0].error and all(reason in each.error for each in outputs)
        assert process.poll() == -signal.SIGKILL, "it was not killed and reaped"
        snapshot = host.snapshot()
        assert snapshot.state == "dead" and snapshot.running == 0
    assert set(os.listdir("/dev/shm")) <= shared
    del engine, host
    assert len(os.listdir("/proc/self/fd")) <= files + 2


def test_a_rank_that_dies_ends_an_idle_engine(llama: Path) -> None:
    engine = engine_on(llama, tp=2)
    died: list[Died] = []
    engine.bus.subscribe(lambda event: died.append(event) if isinstance(event, Died) else None)
    with served(engine):
        team_of(engine).members[0].process.kill()
        wait_for(lambda: died)
        assert "rank 1 was killed by SIGKILL" in died[0].error
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            engine.submit(PROMPT, LONG, Output())


def test_a_step_that_fails_on_one_rank_fails_on_all(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait in a sum, or are past it. All stop, and the next steps run on all of them again."""
    broken = (sys.executable, "-P", str(FOLDER / "broken_rank.py"))
    monkeypatch.setattr(Team, "command", broken)
    engine = engine_on(llama, tp=2)
    assert isinstance(engine.runner, RankedRunner)
    try:
        for call in ("_compute", "_sample"):
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
        with pytest.raises(EngineDead, match="rank 1 has sampled other tokens than rank 0 in step"):
            drain(engine)
    finally:
        engine.ranks.close()


def test_a_rank_of_another_version_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "command", (sys.executable, "-P", str(FOLDER / "other_rank.py")))
    with pytest.raises(EngineError, match=r"rank 1 has another engine than rank 0: 0\.0 instead of \w{16}"):
        engine_on(llama, tp=2)


def test_a_rank_that_cannot_start_is_named(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "command", (sys.executable, "-P", "-c", "raise SystemExit(3)"))
    with pytest.raises(EngineDead, match="rank 1 ended with exit code 3"):
        engine_on(llama, tp=2)


@pytest.mark.parametrize(("ranks", "problem"), [(3, "cannot be split over 3 ranks")])
def test_what_does_not_divide_is_refused_by_name(
    llama: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, problem: str
) -> None:
    monkeypatch.setattr(Team, "check_identities", lambda team: None)
    with pytest.raises(BadInput, match=problem):
        engine_on(llama, tp=ranks)
