"""How the compiled kernels of a CPU are made."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.kernels.cpu.compiled import build


@pytest.fixture
def uncached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for compiled kernels, and a CPU that seems to have the instructions."""
    monkeypatch.setenv(build.FOLDER, str(tmp_path / "kernels"))
    flags = {each for source in (*build.PRODUCTS.values(), build.PRODUCTS_AVX2) for each in source.needed}
    monkeypatch.setattr(build, "instructions", lambda: frozenset(flags))
    build.kernels.cache_clear()
    yield tmp_path
    build.kernels.cache_clear()


def failing(*found: str) -> Callable[[str], str | None]:
    return lambda name: next((each for each in found if each.endswith(f"/{name}")), None)


def test_without_a_compiler_the_reason_is_given(uncached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", failing())
    assert (
        build.why_not.__wrapped__(build.PRODUCTS[16])
        == "no C compiler: none of cc, gcc, clang is on the PATH"
    )
    build.prepare()
    assert not (uncached / "kernels").exists()


def test_a_compiler_that_fails_is_named_with_what_it_prints(
    uncached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = uncached / "gcc"
    script.write_text("#!/bin/sh\necho 'unrecognized option -mavx512vnni' >&2\necho more >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(build.shutil, "which", failing(str(script)))
    problem = f"{script} cannot compile products.c: unrecognized option -mavx512vnni"
    assert build.why_not.__wrapped__(build.PRODUCTS[8]) == problem
    assert [*(uncached / "kernels").iterdir()] == [], "it leaves no file"


def test_a_kernel_is_compiled_once(uncached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[list[str]]()

    def run(command: list[str], **_: object) -> None:
        assert build.compiling()
        runs.append(command)
        Path(command[-1]).write_bytes(b"a library")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(build.shutil, "which", failing("/bin/gcc"))
    build.prepare()
    runs.sort(key=lambda each: ["products.c", "rows.c", "attention.c"].index(Path(each[-3]).name))
    assert len(runs) == 3 and not build.compiling()
    assert "-DBITS=16" in runs[0] and "-mavx512bf16" in runs[0] and "-mavx512bf16" not in runs[1]
    first = build.library(build.PRODUCTS[16])
    assert first.read_bytes() == b"a library" and len(runs) == 3
    assert build.library(build.PRODUCTS[4]) != first and len(runs) == 4


@pytest.mark.parametrize(
    ("flags", "file"),
    [
        ("avx2 fma", "products_avx2.c"),
        ("avx2", "products.c"),
        ("avx2 fma avx512f", "products.c"),  # torch has a kernel there
    ],
)
def test_a_cpu_without_avx512_has_its_own_products(
    flags: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "instructions", lambda: frozenset(flags.split()))
    assert [build.products(bits).file for bits in (4, 8, 16)] == ["products.c", "products.c", file]


@pytest.mark.parametrize(
    ("flags", "rows", "attention"),
    [
        ("avx2 fma avx512f avx512bw avx512dq avx512vl avx512_bf16", "avx512vl", "avx512_bf16"),
        ("avx2 fma avx512f avx512bw avx512dq avx512vl", "avx512vl", "avx512vl"),
        ("avx2 fma avx512f", "fma", "fma"),
        ("avx2 fma", "fma", "fma"),
        ("", "fma", "fma"),
    ],
)
def test_a_cpu_has_the_best_kernels_that_it_can_run(
    flags: str, rows: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "instructions", lambda: frozenset(flags.split()))
    found = build.rows(), build.attention()
    assert [(each.file, each.needed[-1]) for each in found] == [("rows.c", rows), ("attention.c", attention)]
    if not flags:
        assert [build.why_not.__wrapped__(each) for each in found] == ["this CPU has no avx2"] * 2


@pytest.mark.parametrize("changed", ["rows.c", "vectors.h", "panels.h", "avx2.h", "avx512.h"])
def test_a_changed_file_is_compiled_again(
    changed: str, uncached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = build.ROWS[0].digest
    for name in ("rows.c", *build._HEADERS):
        shutil.copy(build._HERE / name, uncached)
    monkeypatch.setattr(build, "_HERE", uncached)
    assert build.ROWS[0].digest == usual
    (uncached / changed).write_text("no C")
    assert build.ROWS[0].digest != usual


def test_what_cannot_be_loaded_is_a_reason_too(uncached: Path) -> None:
    path = uncached / "kernels" / f"rows-{build.rows().digest}.so"
    path.parent.mkdir()
    path.write_bytes(b"no library")
    assert "rows-" in (build.why_not.__wrapped__(build.rows()) or "")
