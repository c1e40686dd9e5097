"""Ranks without common memory, as on two machines: `minichat rank` connects over TCP, sums go over gloo."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.api.config import EngineConfig, ModelPlace
from engine.api.errors import EngineDead, EngineError
from engine.distributed.crews import far
from engine.distributed.identity import identity
from engine.distributed.team import Team
from engine.host.launching import child_environment
from engine.serving.engine import Engine
from tests.cases import soak
from tests.distributed.crews.running import rank
from tests.runner.small import GREEDY, alone, ask, drain, engine_on
from tests.waiting import becomes

PROMPT = [1, 5, 9, 30]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def start(llama: Path, meet: str, **config: int) -> Engine:
    return engine_on(llama, meet=meet, **config or {"tp": 2})


@pytest.mark.parametrize("kinds", [("tp", "pp"), *soak((("pp", "tp"),))])
def test_a_rank_of_another_machine(llama: Path, meet: str, tmp_path: Path, kinds: tuple[str, str]) -> None:
    """The replies of one process. It joins the next engine too, and its death ends that with the reason."""
    files, expected = open_files(), alone(llama, PROMPT).reply
    with rank(meet, tmp_path / "log"):
        for turn, kind in enumerate(kinds):
            engine = start(llama, meet, **{kind: 2})
            try:
                _, output = ask(engine, PROMPT)
                drain(engine)
                assert output.reply == expected
                _, other = engine.snapshot().ranks
                assert "memfd" not in Path(f"/proc/{other.pid}/maps").read_text(), "it shares memory"
                assert other.device == "cpu on 127.0.0.1"
                assert other.traffic > 0 and (other.joining > 0 or other.bubble > 0)
                if turn:
                    ask(engine, PROMPT, GREEDY.changed(max_tokens=100))
                    engine.step()
                    os.kill(other.pid, signal.SIGKILL)
                    with pytest.raises(
                        EngineDead, match=r"rank 1 on 127\.0\.0\.1 has closed its connections"
                    ):
                        drain(engine)
            finally:
                engine.ranks.close()
            assert becomes(lambda pid=other.pid: not alive(pid))
        del engine
    assert becomes(lambda: open_files() <= files + 2)
    with socket.create_server(("127.0.0.1", int(meet.split(":")[1]))):
        pass  # the port is free again


@pytest.mark.soak
@pytest.mark.parametrize(("tp", "pp", "stages"), [(1, 2, [1, 0]), (2, 2, [1, 1, 0, 0]), (1, 3, [2, 1, 0])])
def test_stages_on_several_machines(
    llama: Path, meet: str, tmp_path: Path, tp: int, pp: int, stages: list[int]
) -> None:
    with ExitStack() as machines:
        for number in range(tp * pp - 1):
            machines.enter_context(rank(meet, tmp_path / f"log{number}"))
        engine = start(llama, meet, tp=tp, pp=pp)
        try:
            asked = [ask(engine, [*PROMPT, more])[1] for more in range(4)]
            drain(engine)
            assert [each.reply for each in asked] == [alone(llama, [*PROMPT, n]).reply for n in range(4)]
            assert [each.stage for each in engine.snapshot().ranks] == stages
        finally:
            engine.ranks.close()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["tp", "pp"])
def test_a_rank_that_is_not_heard_of_any_more(
    llama: Path, meet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As if its machine was gone: the connections stay open. The rank that goes on later ends."""
    with rank(meet, tmp_path / "log"):
        engine = start(llama, meet, **{kind: 2})
        monkeypatch.setattr(Team, "silence", 1.5)
        pid = engine.snapshot().ranks[1].pid
        try:
            ask(engine, PROMPT, GREEDY.changed(max_tokens=100))
            engine.step()
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(EngineDead, match=r"rank 1 on 127\.0\.0\.1 did not respond for 1\.5 seconds"):
                drain(engine)
        finally:
            engine.ranks.close()
            os.kill(pid, signal.SIGCONT)
        assert becomes(lambda: not alive(pid))


def test_another_version_is_refused(llama: Path, meet: str) -> None:
    """It has the secret, but its code is older."""
    found = identity(EngineConfig(model=str(llama)), ModelPlace("llama", llama)) | {"engine": "0.0"}
    command = (
        sys.executable,
        "-P",
        str(Path(__file__).parents[1] / "other_rank.py"),
        json.dumps([{"hello": found}]),
    )
    code = (
        "from engine.api.places import MeetingPlace\n"
        "from engine.distributed.crews import joined\n"
        f"joined.COMMAND = {command!r}\n"
        f"joined.be_rank(MeetingPlace.parse({meet!r}), 'cpu', print)\n"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", code], env=child_environment())
    try:
        with pytest.raises(
            EngineError, match=r"rank 1 has a different engine than rank 0: 0\.0 instead of \w{16}"
        ):
            start(llama, meet)
    finally:
        process.kill()
        process.wait()


def test_ranks_that_do_not_come_are_counted(llama: Path, meet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "JOINS", 0.1)
    with pytest.raises(EngineError, match=r"0 of 1 other ranks have connected within 0\.1 s"):
        start(llama, meet)
