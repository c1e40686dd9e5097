"""`minichat quality`: a table, JSON, plots, and its usage errors."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Run

KEYS = {"scheme", "perplexity", "kl", "top1", "bytes", "tok_s"}


def test_json_is_a_list_of_rows(run: Run, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a bird in the hand is worth two in the bush, or so they say")
    ran = run(
        "quality", "--model", model, "--text", text, "--schemes", "none,kv-int8,kv-fp8", "--json",
        "--no-speed", "--device", "cpu", "--blocks", 32,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)
    assert [row["scheme"] for row in rows] == ["none", "kv-int8", "kv-fp8"]
    assert all(row.keys() >= KEYS for row in rows)
    assert rows[0]["kl"] == 0 < rows[2]["kl"]
    assert len({row["perplexity"] for row in rows}) == 3  # the effect of int8 is too small to bound its KL


def test_each_scheme_is_named_on_a_terminal_before_it_is_measured(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    text = tmp_path / "text.txt"
    text.write_text("a bird in the hand is worth two in the bush, or so they say")
    ran = run(
        "quality", "--model", model, "--text", text, "--schemes", "kv-int8,kv-fp8",
        "--no-speed", "--device", "cpu", "--blocks", 32,
    )  # fmt: skip
    assert [each for each in ran.err.splitlines() if "measuring" in each] == [
        "minichat: measuring none, for comparison",
        "minichat: measuring kv-int8 (1 of 2)",
        "minichat: measuring kv-fp8 (2 of 2)",
    ]


def test_a_table_with_plots_and_a_picture(run: Run, model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    ran = run(
        "quality", "--model", model, "--schemes", "kv-int8,none", "--tokens", 40, "--no-speed",
        "--plot", picture, "--device", "cpu", "--blocks", 32,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    head, first, second, *rest = ran.out.splitlines()
    assert head.split()[:3] == ["scheme", "perplexity", "KL"]
    assert (first.split()[0], second.split()[0]) == ("kv-int8", "none")
    assert any("a kv-int8" in line for line in rest)
    ElementTree.parse(picture)


def test_windows_and_budgets_are_compared(run: Run, model: Path) -> None:
    words = ("--model", model, "--tokens", 90, "--device", "cpu", "--blocks", 32)
    ran = run("quality", *words, "--budgets", "80,64")
    assert ran.code == 1  # one of the budgets is too small
    head, *rows = ran.out.splitlines()
    assert head.split() == ["policy", "tokens", "perplexity", "recall"]
    assert [row.split()[:2] for row in rows] == [
        ["all", "90"], ["window", "80"], ["norms", "80"], ["attention", "80"], ["window", "64"],
    ]  # fmt: skip
    assert "--budgets: norms of 64 tokens is skipped: it needs at least 80 tokens" in ran.err


def test_each_budget_is_named_on_a_terminal_before_it_is_measured(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    words = ("--model", model, "--tokens", 90, "--device", "cpu", "--blocks", 32)
    ran = run("quality", *words, "--budgets", "64")
    assert ran.err.splitlines() == [
        f"minichat: loading {model.name}",
        "minichat: measuring all tokens (1 of 4)",
        "minichat: measuring window of 64 tokens (2 of 4)",
        "minichat: --budgets: norms of 64 tokens is skipped: it needs at least 80 tokens",
        "minichat: --budgets: attention of 64 tokens is skipped: it needs at least 80 tokens",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_temporary_folder_is_reported(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("quality", "--model", model, "--tokens", 40, "--no-speed", "--device", "cpu", "--blocks", 32)
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "reference").symlink_to("/dev/full")
    monkeypatch.setattr("tempfile.mkdtemp", lambda *_: str(folder))
    problem = "minichat: cannot store log probabilities: {}; set TMPDIR to a folder with room\n"
    assert run(*words) == (1, "", problem.format("No space left on device"))
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert run(*words) == (1, "", problem.format("No such file or directory"))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--text", "no/such"], "--text no/such: No such file"),
        (["--schemes", "kv-int5"], "unknown cache scheme kv-int5"),
        (["--schemes", "int9"], "unknown weight scheme 'int9'"),
        (["--tokens", "1"], "--tokens must be at least 2, got 1"),
        (["--plot", "out.png"], "must end in .svg"),
        (["--plot", "no/such/out.svg"], "does not exist"),
        (["--budgets", "64,many"], "--budgets must be numbers of tokens, such as 128,256, not 64,many"),
        (["--budgets", "64,8"], "--budgets must be at least 20 tokens, got 8"),
        (["--budgets", "20", "--kv-sinks", "8"], "--budgets must be at least 24 tokens, got 20"),
        (["--kv-sinks", "8"], "--kv-sinks requires --kv-window or --budgets"),
        (["--budgets", "96", "--plot", "out.svg"], "--plot shows schemes; leave out --budgets"),
        (["--budgets", "96", "--schemes", "none"], "--schemes has no effect with --budgets"),
        (["--kv", "int8"], "--kv int8 must be given as a scheme: --schemes none,kv-int8"),
        (["--policy", "priority"], "--policy has no effect on the quality of a scheme; leave it out"),
        (["--target-ms", "9"], "--target-ms has no effect on the quality of a scheme; leave it out"),
        (["--max-slowdown", "2"], "--max-slowdown has no effect on the quality of a scheme; leave it out"),
        (["--kv-host", "1"], "--kv-host has no effect on the quality of a scheme; leave it out"),
        (["--kv-disk", "auto"], "--kv-disk has no effect on the quality of a scheme; leave it out"),
        (["--kv-budget", "96"], "--kv-budget 96 must be given as --budgets 96"),
        (["--kv-eviction", "norms"], "--kv-eviction has no effect here: --budgets compares both kinds"),
        (["--budgets", "96", "--no-speed"], "--no-speed has no effect with --budgets"),
        (["--tp", "2"], "--tp has no effect on the quality of a scheme; leave it out"),
        (["--pp", "2"], "--pp has no effect on the quality of a scheme; leave it out"),
        (["--adapter", "a=b"], "quality measures the model without adapters; leave out --adapter"),
        (["--draft", "pocket"], "quality measures the model without drafts; leave out --draft"),
        (["--quantization", "int4"], "--quantization int4 must be given as a scheme: --schemes none,int4"),
    ],
)
def test_bad_usage_is_refused(run: Run, model: Path, words: list[str], problem: str) -> None:
    ran = run("quality", "--model", model, *words)
    assert ran.code == 2
    assert problem in ran.err
    assert ran.out == ""


def test_no_line_of_the_table_is_wider_than_the_terminal(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "quality", "--model", model, "--tokens", 40, "--no-speed", "--device", "cpu", "--blocks", 32,
        "--schemes", "none,kv-int8",
    )  # fmt: skip
    whole = run(*words).out.partition("\n\n")[0].splitlines()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run(*words).out
    first, second, *_ = (part.splitlines() for part in narrow.split("\n\n"))
    assert max(map(len, whole)) > 60 >= max(map(len, [*first, *second]))
    assert [line.split()[0] for line in [*first, *second]] == ["scheme", "none", "kv-int8"] * 2
    assert whole[0].split() == [*first[0].split(), *second[0].split()[1:]]
