"""Paths that cannot be examined are refused in a sentence; pathlib raises exceptions for them."""

from pathlib import Path

import pytest

from .conftest import Run

LONG = f"/{'a' * 300}"


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "quick", "--json", f"{LONG}/rows.jsonl"),
        ("bench", "quick", "--compare", LONG),
        ("quality", "--plot", f"{LONG}/plot.svg"),
        ("serve", "--tls-cert", LONG, "--tls-key", LONG),
    ],
)
def test_it_is_refused_as_an_argument(run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.code == 2
    lines = ran.err.splitlines()  # bench may first warn about uncommitted changes
    assert LONG in lines[-1] and all(line.startswith("minichat: ") for line in lines)


def test_a_current_folder_that_was_deleted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run("generate", "hi") == (
        2,
        "",
        "minichat: the current folder was deleted; go to another one first\n",
    )


def test_it_is_refused_as_a_draft_model(run: Run, model: Path) -> None:
    ran = run("generate", "--raw", "--model", model, "--speculate", "draft", "--draft", LONG, "hi")
    assert ran.code == 1
    assert "draft: there is no folder or GGUF file" in ran.err and ran.err.count("\n") == 1
