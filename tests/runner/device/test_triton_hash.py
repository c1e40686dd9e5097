"""The hash of Triton's files is computed again only if one of them has changed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

cache = pytest.importorskip("triton.runtime.cache", reason="no Triton here")

from engine.kernels.triton_hash import hash_triton  # noqa: E402

KEPT = Path("minichat") / "triton.hash"


@pytest.fixture
def computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often it is computed, for a copy of the folder with other files."""
    for name in ("_C", "backends/nvidia", "compiler", "language", "runtime"):
        (tmp_path / "triton" / name).mkdir(parents=True)
    for name in ("__init__.py", "_C/libtriton.so", "backends/nvidia/driver.py", "runtime/cache.py"):
        (tmp_path / "triton" / name).write_text("1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "triton" / "runtime" / "cache.py"))
    return []


def start(monkeypatch: pytest.MonkeyPatch, computed: list[str]) -> str:
    """Return the hash that a new process uses."""

    def compute() -> str:
        computed.append(f"hash {len(computed)}")
        return computed[-1]

    with monkeypatch.context() as process:
        process.setattr(cache, "triton_key", compute)
        hash_triton()
        return str(cache.triton_key()) if cache.triton_key is not compute else computed[-1]


def test_it_is_kept(monkeypatch: pytest.MonkeyPatch, computed: list[str]) -> None:
    assert [start(monkeypatch, computed) for _ in range(3)] == ["hash 0"] * 3
    assert computed == ["hash 0"]


@pytest.mark.parametrize(
    "name", ["_C/libtriton.so", "backends/nvidia/driver.py", "__init__.py", "compiler/new.py"]
)
def test_a_changed_file_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[str], name: str
) -> None:
    start(monkeypatch, computed)
    (tmp_path / "triton" / name).write_text("2")
    os.utime(tmp_path / "triton" / name, ns=(1, 1))
    assert [start(monkeypatch, computed) for _ in range(2)] == ["hash 1"] * 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_text("["),
        lambda file: file.write_text("{}"),
        lambda file: file.write_text("[[], 5]"),
        lambda file: file.write_bytes(b"\xff"),
        lambda file: (file.unlink(), file.mkdir()),
    ],
)
def test_what_cannot_be_read_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[str], spoil: Callable[[Path], object]
) -> None:
    start(monkeypatch, computed)
    spoil(tmp_path / "kernels" / KEPT)
    assert start(monkeypatch, computed) == "hash 1"
