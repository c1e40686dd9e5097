"""A path that is longer than any file's name is refused in a sentence; pathlib raises an exception for it."""

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


def test_it_is_refused_as_a_draft_model(run: Run, model: Path) -> None:
    ran = run("generate", "--raw", "--model", model, "--speculate", "draft", "--draft", LONG, "hi")
    assert ran.code == 1
    assert "there is no folder or GGUF file" in ran.err and ran.err.count("\n") == 1
