"""`minichat up` beside an engine that was started with other settings."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from minichat.models.residents import Record, Resident, home_of
from minichat.shell.paths import locate
from tests.cli.conftest import Run, run

__all__ = ["run"]


@pytest.fixture
def resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resident]:
    """An engine that is ready: its lock is held, and it has a record."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    one = Resident(home_of(locate()))
    one.folder.mkdir(parents=True)
    words = ["--model=pocket", "--policy=fcfs", "--quantization=none", "--kv=fp8"]
    Record(os.getpid(), "pocket", 0.0, "ready", words=words).write(one.file)
    locate().settings.parent.mkdir(parents=True)
    with open(one.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield one


def test_settings_that_a_running_engine_does_not_have_are_reported(run: Run, resident: Resident) -> None:
    file = locate().settings
    file.write_text('[engine]\nquantization = "int8"\nblocks = 64\npolicy = "fcfs"\nkv = "fp8"\n')
    code, _, err = run("up", "--no-screen")
    way = "to change that: minichat down, then minichat up"
    assert (code, err.splitlines()) == (
        0,
        [
            f"minichat: {file}:2: engine.quantization: the engine main runs with none, not int8; {way}",
            f"minichat: {file}:3: engine.blocks: the engine main runs without it; {way}",
            f"minichat: {resident.goes_on}",
        ],
    )


def test_other_differences_are_not(run: Run, resident: Resident) -> None:
    """Options that it was started with hide no setting, and a typed option is checked by itself."""
    locate().settings.write_text('[engine]\nquantization = "int8"\n')
    code, _, err = run("up", "--no-screen", "--quantization=none")
    assert (code, err.splitlines()) == (0, [f"minichat: {resident.goes_on}"])
