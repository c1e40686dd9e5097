"""Ranks that sum over gloo, as they do without memory in common: the same replies, and the same ends."""

import os
import signal
import sys
from pathlib import Path

import pytest

from engine.api.errors import EngineDead
from engine.distributed import team
from engine.distributed.crews import started
from engine.distributed.groups.group import GroupCollective
from engine.distributed.team import Team
from tests.distributed.test_ranks import everything
from tests.distributed.threads import ranked
from tests.runner.rows.test_speculation import always_draft
from tests.runner.small import GREEDY, alone, ask, drain, engine_on
from tests.waiting import becomes

PROMPT = [1, 5, 9, 30]
FOLDER = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "needs_group", lambda config: True)


@pytest.mark.soak  # of two crowded engines; the next test also sums over gloo
def test_every_kind_of_request_is_answered_as_with_shared_memory(
    drafted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, log probabilities included."""
    config = {"blocks": 6, "host_blocks": 6, "max_running": 6, "max_step_tokens": 20, "preemption": "swap"}
    with ranked(drafted, **config) as engine:
        found = everything(always_draft(engine))
        assert isinstance(engine.ranks.sums, GroupCollective)
        assert engine.snapshot().traffic > 0
    monkeypatch.setattr(team, "needs_group", lambda config: False)
    with ranked(drafted, **config) as engine:
        assert found[0] == everything(always_draft(engine))[0]


def test_stages_of_ranks(llama: Path) -> None:
    with ranked(llama, tp=2, pp=2) as engine:
        _, output = ask(engine, PROMPT)
        drain(engine)
        assert output.tokens == alone(llama, PROMPT).tokens


@pytest.mark.soak
def test_a_step_that_fails_on_one_rank_fails_on_all(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait in a sum, or are past it. All leave their group, and meet again in another."""
    monkeypatch.setattr(started, "COMMAND", (sys.executable, "-P", str(FOLDER / "broken_rank.py")))
    files = len(os.listdir("/proc/self/fd"))
    engine = engine_on(llama, tp=2)
    try:
        for call in ("compute", "sample"):
            _, output = ask(engine, PROMPT)
            drain(engine)
            assert "rank 1: RuntimeError: call" in output.error and call in output.error
        _, output = ask(engine, PROMPT)
        drain(engine)
        assert output.reply == alone(llama, PROMPT).reply
        _, output = ask(engine, PROMPT, GREEDY.changed(max_tokens=100))
        for _ in range(5):
            engine.step()
        os.kill(engine.snapshot().ranks[1].pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="rank 1 was killed by SIGKILL"):
            drain(engine)
    finally:
        engine.ranks.close()
    del engine
    assert becomes(lambda: len(os.listdir("/proc/self/fd")) <= files + 2)


@pytest.mark.soak
def test_a_rank_that_stops_ends_the_engine(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(llama, tp=2)
    monkeypatch.setattr(Team, "silence", 1.5)
    try:
        ask(engine, PROMPT)
        engine.step()
        os.kill(engine.snapshot().ranks[1].pid, signal.SIGSTOP)
        with pytest.raises(EngineDead, match=r"rank 1 did not respond for 1\.5 seconds and was killed"):
            drain(engine)
    finally:
        engine.ranks.close()
