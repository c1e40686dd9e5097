"""Errors of the engine name the options of the command line, not the fields of its configuration."""

import argparse
from pathlib import Path

import pytest

from minichat.commands.options import with_options
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--kv-budget 128 --kv-window 64",
            "--kv-budget cannot be used with --kv-window; choose one of the two",
        ),
        ("--kv-budget 128 --kv-host 1", "--kv-budget cannot be used with --kv-host; choose one of the two"),
        ("--kv-budget 128 --tp 2", "--kv-budget cannot be used with --tp yet; run on one rank"),
        ("--adapter a=b --pp 2", "--adapter cannot be used with --pp yet; run on one rank"),
        ("--draft mtp --tp 2", "--draft: mtp runs in one process only; leave --tp and --pp at 1"),
        ("--draft mtp --kv-window 64", "--draft: mtp cannot be used with --kv-window or --kv-budget"),
        ("--n 3 --beams 2", "--n: 3 is more than --beams (2)"),
        ("--regex a+ --speculate ngram", "--regex: cannot be combined with --speculate (ngram)"),
        ("--n 3 --best-of 2", "--best-of: 2 is less than --n (3)"),
        ("--device toaster", "--device 'toaster' is unknown; use cpu, cuda, or cuda:<index>"),
        ("--policy fast", "--policy 'fast' is unknown; available: fcfs, latency, priority"),
        ("--attention none", "--attention 'none': no backend has that name; available here: torch"),
        ("--kv-disk x", "--kv-disk must be DIR:GB, with GB above 0, such as /scratch/kv:20, not 'x'"),
    ],
)
def test_a_refusal_names_options(run: Run, words: str, says: str) -> None:
    speculate = ["--speculate", "draft"] if "--draft" in words else []
    ran = run("generate", "hi", *words.split(), *speculate)
    assert (ran.code, ran.out, ran.err) == (2, "", f"minichat: {says}\n")


def test_a_server_names_options(run: Run, tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("x" * 32)
    secret.chmod(0o600)
    ran = run("serve", "--port", 0, "--meet", f"localhost:7000:{secret}")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "minichat: --meet needs --tp or --pp above 1")


def test_a_rank_has_no_such_option(run: Run, tmp_path: Path) -> None:
    assert "minichat: the address must be HOST:PORT:FILE" in run("rank", "x").err
    assert "minichat: cannot read the secret in " in run("rank", f"x:1:{tmp_path}/none").err


@pytest.mark.parametrize(
    "text",
    [
        "cannot read /models/tp/kv_window",
        "tp.json is no kv_cache",
        "'max_context' is 3",
        "is --tp or --kv-host",
    ],
)
def test_other_words_stay(text: str) -> None:
    options = argparse.Namespace(tp=2, kv_window=1, kv_host=3, max_context=4)
    assert with_options(text, options) == text
