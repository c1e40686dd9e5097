"""What a terminal shows while a command has nothing to print yet."""

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from engine.api.config import EngineConfig
from engine.api.errors import BadInput, EngineError
from engine.models.find import ModelPlace, Progress
from minichat.commands import fetch, ps, up
from minichat.doing import doing_late
from minichat.models.residents import Record, Resident, Waiting
from minichat.shell import first
from tests.cli.conftest import Run
from tests.cli.test_output import on_terminal


def test_fetch_says_that_it_looks_for_a_model(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub may take its time before the first byte, or never answer."""

    def found(name: str, progress: Progress) -> ModelPlace:
        progress(10**9, 10**9)
        return ModelPlace(name, tmp_path)

    on_terminal(monkeypatch)
    monkeypatch.setattr(fetch, "find_model", found)
    ran = run("fetch", "org/model")
    meter = "\r\x1b[K1.00 of 1.00 GB\n"
    assert (ran.code, ran.err) == (0, f"\r\x1b[Klooking for org/model ...{meter}\r\x1b[K")


def test_bench_says_that_it_loads_the_model(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    ran = run("bench", "memory", "--only", "nothing", "--model", chat_model)
    assert ran.err.startswith(f"\r\x1b[Kloading {chat_model.name} ...\r\x1b[K")


def test_generate_still_says_that_it_loads_once_the_weights_are_there(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels and the cache may take longer than the weights."""

    def start(config: EngineConfig, progress: Progress, **_: object) -> None:
        progress(1_000_000_000, 2_000_000_000)
        progress(2_000_000_000, 2_000_000_000)
        raise BadInput("no more")

    on_terminal(monkeypatch)
    monkeypatch.setattr("engine.start.start", start)
    ran = run("generate", "a", "--model", chat_model)
    loading = f"\r\x1b[Kloading {chat_model.name} ..."
    meter = "\r\x1b[Kloading 1.00 of 2.00 GB"
    assert ran.err == f"{loading}{meter}{loading}\r\x1b[Kminichat: no more\n"


def test_up_still_says_that_it_starts_once_the_weights_are_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loaded(Waiting):
        async def ensure(self, progress: Progress) -> None:
            progress(2_000_000_000, 2_000_000_000)

    on_terminal(monkeypatch)
    up._wait(Loaded(Resident(Path(), "main"), []))
    assert capsys.readouterr().err == "\r\x1b[Kstarting main ..." * 2 + "\r\x1b[K"


def test_ps_says_that_it_waits_for_an_engine_that_hangs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> None:
        await asyncio.sleep(0.1)
        raise EngineError("no answer within 3 s")

    resident = Mock(record=Record(7, "pocket", 0.0, "ready"), socket="/x")
    resident.name = "main"
    on_terminal(monkeypatch)
    monkeypatch.setattr(ps, "residents", lambda _: [resident])
    monkeypatch.setattr(ps, "ask", ask)
    monkeypatch.setattr(ps, "doing_late", partial(doing_late, after=0.01))
    ran = run("ps")
    assert ran.err == "\r\x1b[Kwaiting for the engines ...\r\x1b[K"
    assert "no answer" in ran.out


def test_a_command_says_that_it_reads_the_piped_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command before it may take minutes."""

    def read(_: int) -> bytes:
        time.sleep(0.1)
        return b"hello"

    on_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdin", Mock(buffer=Mock(read=read)))
    monkeypatch.setattr(first, "doing_late", partial(doing_late, after=0.01))
    assert first.piped_bytes() == b"hello"
    assert capsys.readouterr().err == "\r\x1b[Kreading the piped input ...\r\x1b[K"
