"""Standard streams that are closed, full, or have a limited encoding."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from minichat.shell.streams import settle
from tests.cases import soak


def output(shell: str, command: str = "locate", out: bool = False) -> tuple[int, str]:
    """Exit code and standard error of a command with these redirections, or its standard output if `out`."""
    words = f'"{sys.executable}" -m minichat {command} {shell}'
    ended = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout if out else ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_onto_a_full_disk() -> None:
    assert output(">/dev/full") == (1, "minichat: cannot write: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["--help", "serve --help", "--version", "cache"])
def test_short_output_onto_a_full_disk(command: str) -> None:
    assert output(">/dev/full", command) == (1, "minichat: cannot write: No space left on device\n")


def test_help_into_a_closed_pipe() -> None:
    code, words = output("| true", "--help")
    assert (code, words) == (0, "")


def test_into_a_closed_pipe() -> None:
    code, words = output("| true")
    assert (code, words) == (0, "")


@pytest.mark.parametrize("command", ["locate", "--version"])
def test_into_a_closed_stream(command: str) -> None:
    assert output(">&-", command) == (1, "minichat: cannot write: standard output is closed\n")


@pytest.mark.parametrize("command", ["tour", "attach"])
def test_without_standard_input_a_terminal_is_required(command: str) -> None:
    code, words = output("<&-", command)
    assert code == 2 and words.count("\n") == 1 and "needs a terminal" in words


@pytest.mark.soak
def test_a_reply_into_a_closed_stream_is_not_lost_silently() -> None:
    code, words = output("hi >&-", "generate --max-tokens=2")
    assert (code, words) == (1, "minichat: cannot write: standard output is closed\n")


@pytest.mark.parametrize("words", ["locate", *soak("generate --max-tokens=2 hi")])
def test_without_standard_error_a_command_still_succeeds(words: str) -> None:
    code, said = output("2>&-", words, out=True)
    assert code == 0 and said.strip()


@pytest.mark.soak
def test_without_standard_input_a_plain_chat_ends_silently() -> None:
    assert output("<&-", "chat --plain") == (0, "")


def test_a_closed_stream_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "__stdin__", None)
    settle()
    with sys.stdin as nowhere:
        assert nowhere is sys.__stdin__ and nowhere.read() == ""


def test_characters_outside_the_c_locale_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, Python passes on bytes of file names, but fails at other characters."""
    out = io.TextIOWrapper(io.BytesIO(), "ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdout", out)
    settle()
    out.write("gr\u00fcn \udcff")
    out.flush()
    assert out.buffer.getvalue() == b"gr\\xfcn \\udcff"  # type: ignore[attr-defined]


@pytest.mark.soak
def test_characters_outside_the_locale_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert output("hi", "generate --choice=gr\u00fcn", out=True) == (0, "gr\\xfcn\n")


@pytest.mark.soak
def test_json_keeps_characters_outside_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, record = output("hi", "generate --json --choice=gr\u00fcn", out=True)
    assert code == 0 and json.loads(record)["text"] == "gr\u00fcn"
