"""What a terminal shows while a command has nothing to print yet."""

from pathlib import Path

import pytest

from engine.models.find import ModelPlace, Progress
from minichat.commands import fetch
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
