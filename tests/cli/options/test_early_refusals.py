"""Options that are refused before torch is imported, which takes seconds."""

import subprocess
import sys

import pytest

from tests.cli.conftest import Run

REFUSED = [
    (["quality", "--schemes", "int5"], "unknown weight scheme 'int5'"),
    (["quality", "--schemes", "kv-int5"], "unknown cache scheme kv-int5"),
    (["quality", "--budgets", "x"], "--budgets must be numbers of tokens"),
    (["quality", "--budgets", "96", "--plot", "x.svg"], "leave out --budgets"),
    (["quality", "--blocks", "0"], "minichat: --blocks must be a whole number above 0"),
    (["serve", "--port", "0", "--kv-host", "-1"], "minichat: --kv-host must be gigabytes"),
    (["serve", "--port", "0", "--meet", "x"], "minichat: --meet must be HOST:PORT:FILE"),
    (["bench", "latency", "--max-context", "0"], "minichat: --max-context must be"),
    (["bench", "latency", "--rows", "0"], "--rows must be at least 1, got 0"),
    (["bench", "latency", "--ttft", "1"], "--ttft has no effect with latency; it is for throughput"),
    (["bench", "quick", "--trace", "pyproject.toml"], "--trace has no effect with quick; it is for through"),
    (["bench", "memory", "--price", "3"], "--price has no effect with memory; it is for energy"),
    (["bench", "energy", "--threads", "2"], "--threads has no effect with energy; it is for peers"),
    (["bench", "latency", "--json", "docs"], "--json docs is a folder; it takes the name of a file"),
    (["bench", "latency", "--json", "no/such"], "--json no/such: the folder"),
    (["bench", "latency", "--plot", "x.png"], "must end in .svg"),
    (["bench", "latency", "--compare", "no/such"], "--compare no/such: no such file"),
    (["bench", "peers", "--peer", "vllm"], "--peer vllm must be NAME=PYTHON"),
]
PROGRAM = """
import sys

import pytest

from tests.cli.conftest import Run
from minichat.cli import main
sys.modules["torch"] = None  # importing it fails
for words in {words!r}:
    assert main(words) == 2, words
"""


def test_options_are_refused_without_torch() -> None:
    program = PROGRAM.format(words=[words for words, _ in REFUSED])
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stderr.splitlines()
    assert len(lines) == len(REFUSED)
    for line, (_, problem) in zip(lines, REFUSED, strict=True):
        assert problem in line


@pytest.mark.parametrize("command", ["chat", "up"])
def test_a_policy_that_no_screen_could_start_with_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("minichat.commands.up.check_terminal", lambda what: None)
    says = "minichat: --policy 'fast' is unknown; available: fcfs, latency, priority\n"
    assert run(command, "--policy", "fast") == (2, "", says)


def test_the_screen_names_the_option(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minichat.commands.tui._by_lines", lambda options: False)
    monkeypatch.setattr("minichat.commands.tui._on_screen", lambda options: True)
    assert run("chat", "hi", "--kv-host", -1) == (
        2, "", "minichat: --kv-host must be gigabytes, 0 or more, not -1.0\n"
    )  # fmt: skip
    monkeypatch.setattr("minichat.commands.screen.take_terminal", lambda log: None)
    ran = run("chat", "hi", "--top-p", 3)
    assert (ran.code, ran.err) == (2, "minichat: --top-p: must be a number above 0 to 1, not 3.0\n")


def test_a_key_without_an_address_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minichat.commands.attach.check_terminal", lambda what: None)
    ran = run("attach", "--api-key-file", "no/such")
    assert (ran.code, ran.out) == (2, "")
    assert "--api-key-file has no effect without an address" in ran.err
