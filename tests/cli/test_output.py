"""Standard streams that are closed, full, or have a limited encoding, and what a terminal shows meanwhile."""

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from engine.api.errors import EngineError
from engine.api.request import Request
from engine.host.thread import EngineThread
from engine.scheduling.policy import POLICIES
from minichat import cli
from minichat.commands.options import failed, show_progress
from minichat.doing import doing, doing_late, waiting
from minichat.shell.streams import settle
from tests.cases import soak
from tests.cli.conftest import Run
from tests.runner.letters import byte_tokenizer


class FailingPolicy:
    """A policy whose `rank` has a defect."""

    name = "fails"

    def rank(self, request: Request) -> tuple[float, ...]:
        raise ValueError("no such field")


def test_a_policy_that_fails_is_reported_once(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "fails", FailingPolicy)
    ran = run("generate", "--model", model, "--raw", "--policy", "fails", "the")
    assert (ran.code, ran.out) == (1, "")
    why = "the engine has stopped: ValueError: no such field (test_output.py:"
    assert ran.err.startswith(f"minichat: {why}") and ran.err.count("\n") == 1


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


# What a terminal shows meanwhile


def on_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm") -> None:
    """Make standard error a terminal of 40 columns."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", term)


def test_a_terminal_shows_that_the_model_is_loading(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    words = ("--model", chat_model, "--max-tokens", 2)
    assert run("generate", "a", *words).err == f"\r\x1b[Kloading {chat_model.name} ...\r\x1b[K"
    ran = run("generate", "a", *words, "--attention", "none-such")
    assert ran.code == 2 and ran.err.startswith(f"\r\x1b[Kloading {chat_model.name} ...\r\x1b[Kminichat: ")


def test_a_warning_replaces_what_the_terminal_shows_meanwhile(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    warn = logging.getLogger("minichat.engine").warning
    monkeypatch.setattr("engine.start._refuse_ranks", lambda config, folder: warn("slow disk"))
    ran = run("generate", "a", "--model", chat_model, "--max-tokens", 2)
    assert ran.err == f"\r\x1b[Kloading {chat_model.name} ...\r\x1b[Kminichat: slow disk\n\r\x1b[K"


def test_a_meter_replaces_what_the_terminal_shows_meanwhile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    show_progress(0, 2_000_000_000)
    assert capsys.readouterr().err == "\r\x1b[Kloading 0.00 of 2.00 GB"


def test_what_is_shown_meanwhile_fits_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    with doing() as say:
        say("loading " + "x" * 50)
    _, shown, *_ = capsys.readouterr().err.split("\r\x1b[K")
    assert shown == "loading " + "x" * 27 + " ..."
    with doing():
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("shows", "term"), [(False, "xterm"), (True, "dumb")])
def test_nothing_is_shown_meanwhile_where_it_could_not_be_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shows: bool, term: str
) -> None:
    on_terminal(monkeypatch, term)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: shows)
    with doing("loading") as say:
        say("more")
    assert capsys.readouterr().err == ""


def test_a_wait_is_shown_once_it_is_long_and_removed_before_what_arrives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    shown = threading.Event()
    monkeypatch.setattr("minichat.doing.harmless", lambda text, _: shown.set() or text)

    def slow() -> Iterator[str]:
        yield ""
        assert shown.wait(20)
        yield "one"
        yield "two"

    for item in waiting(slow(), "waiting", bool, after=0.01):
        print(item, file=sys.stderr)
    assert capsys.readouterr().err == "\n\r\x1b[Kwaiting ...\r\x1b[Kone\ntwo\n"
    assert [*waiting(["one", "two"], "waiting", bool)] == ["one", "two"]
    assert [*waiting([""], "waiting", bool)] == [""]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("module", "words"),
    [("generate", ["generate", "a"]), ("generate", ["generate", "--n", 2, "a"]), ("chat", ["chat"])],
)
def test_a_wait_for_an_engine_that_takes_no_request_is_shown(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch, module: str, words: list[object]
) -> None:
    """As while it compiles kernels."""
    on_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    shown, submit = threading.Event(), EngineThread.submit

    def see(text: str, _: object) -> str:
        if text.startswith("waiting"):
            shown.set()
        return text

    monkeypatch.setattr("minichat.doing.harmless", see)
    monkeypatch.setattr(f"minichat.commands.{module}.doing_late", partial(doing_late, after=0.01))
    monkeypatch.setattr(EngineThread, "submit", lambda *a, **more: shown.wait(20) and submit(*a, **more))
    ran = run(*words, "--model", chat_model, "--max-tokens", 2)
    assert ran.code == 0 and "\r\x1b[Kwaiting for the repl" in ran.err and ran.err.endswith("\r\x1b[K")


def test_a_slow_start_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    shown, load = threading.Event(), cli.import_module
    monkeypatch.setattr("minichat.doing.harmless", lambda text, _: shown.set() or text)
    monkeypatch.setattr(cli, "import_module", lambda name: shown.wait(20) and load(name))
    assert cli.main(["locate"]) == 0
    assert capsys.readouterr().err == "\r\x1b[Kstarting minichat ...\r\x1b[K"


# What a model or another program wrote


@pytest.mark.parametrize("words", ["generate", "generate --n 2"])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_the_control_characters_of_a_reply_and_obeys_none(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch, words: str, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    ran = run(*words.split(), "--model", chat_model, "--regex", r"\x1b\[2J\x07red", "hi")
    shown = "\u241b[2J\u2407red" if terminal else "\x1b[2J\x07red"
    assert ran.code == 0 and shown in ran.out
    assert terminal == ("\x1b[2J" not in ran.out)


def test_a_chat_on_a_terminal_obeys_nothing_in_a_reply(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (escape,) = byte_tokenizer().encode("\x1b").ids
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"/set allowed_token_ids [{escape}]\nhi\n"))
    ran = run("chat", "--plain", "--model", chat_model, "--max-tokens", 2)
    assert ran.code == 0 and "\u241b\u241b" in ran.out and "\x1b\x1b" not in ran.out


def test_a_terminal_obeys_nothing_in_an_error_or_a_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    failed(EngineError("it said a\x1b[2J"))
    with doing("loading b\x1b[2J"):
        pass
    words = capsys.readouterr().err
    assert "a\u241b[2J" in words and "b\u241b[2J" in words and "\x1b[2J" not in words
