"""Code that Python generates while modules are imported is compiled once, and kept on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

POINT = """
import builtins, sys
from engine.generated import kept_code
kept_code.begin()
import dataclasses

compiled = []
usual = builtins.compile
builtins.compile = lambda *given, **named: compiled.append(given) or usual(*given, **named)

@dataclasses.dataclass(frozen=True, order=True)
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)

builtins.compile = usual
kept_code.end()
print(bool(compiled), Point(1), Point(1) == Point(1, []), Point(1) < Point(2), "exec" in vars(dataclasses))
"""
ANSWER = "Point(x=1, y=[]) True True False\n"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    return tmp_path


def test_the_second_process_compiles_nothing(cached: Path) -> None:
    assert printed() == f"True {ANSWER}"
    assert printed() == f"False {ANSWER}"


@pytest.mark.parametrize("content", [b"", b"nothing of Python's", None])
def test_a_file_that_is_not_ours_is_replaced(cached: Path, content: bytes | None) -> None:
    printed()
    (file,) = cached.rglob("generated.*.opt-code.pyc")
    file.write_bytes(file.read_bytes()[:-9] if content is None else content)
    assert printed() == f"True {ANSWER}"
    assert printed() == f"False {ANSWER}"


def test_nothing_is_written_where_no_bytecode_is(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert printed() == printed()
    assert not [*cached.rglob("*")]


def printed() -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", POINT], env=environment, capture_output=True, text=True)
    assert not ran.stderr
    return ran.stdout
