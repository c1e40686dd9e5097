"""A question on the command line, and piped input."""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minichat.cli import parser
from minichat.commands.generate import unread_input
from minichat.shell.again import announce, restart, restarted, words_of
from minichat.shell.paths import locate
from tests.cli.conftest import Run
from tests.waiting import becomes

OPTIONS = ["--max-tokens", "4", "--temperature", "0", "--blocks", "200"]


def ask(root: Path, *words: object, stdin: bytes | int) -> subprocess.CompletedProcess[bytes]:
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    command = [sys.executable, "-m", "minichat", *map(str, words)]
    return subprocess.run(command, cwd=root, capture_output=True, timeout=100, **given)  # type: ignore[call-overload]


def test_without_a_terminal_a_question_is_answered_as_by_generate(
    run: Run, root: Path, long_model: Path
) -> None:
    asked = ask(root, "what is this?", "--model", long_model, *OPTIONS, stdin=b"+ a line\n")
    whole = "what is this? @stdin\n\nstdin:\n```\n+ a line\n```"
    plain = run("generate", whole, "--model", long_model, *OPTIONS)
    assert (asked.returncode, asked.stderr) == (0, b"")
    assert asked.stdout.decode() == plain.out != ""


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Make a pipe with these bytes the standard input of this process: another one takes seconds to start."""
    with ExitStack() as opened:

        def give(text: bytes) -> None:
            end, other = os.pipe()
            os.write(other, text)
            os.close(other)
            monkeypatch.setattr(sys, "stdin", opened.enter_context(open(end)))

        yield give


def test_a_dash_attaches_piped_input_to_generate(
    run: Run, pipe: Callable[[bytes], None], long_model: Path
) -> None:
    words = ("--model", long_model, *OPTIONS)
    pipe(b"+ a line\n")
    asked = run("generate", "what is this?", "-", *words)
    assert (asked.code, asked.err) == (0, "")
    whole = "what is this? @stdin\n\nstdin:\n```\n+ a line\n```"
    assert asked.out == run("generate", whole, *words).out != ""
    plain = run("generate", "what is this?", *words).out
    pipe(b"a script's next line\n")
    assert run("generate", "what is this?", *words) == (0, plain, "")
    pipe(b"what is this?")
    assert run("generate", "-", *words).out == plain
    pipe(b"what")
    words = ("--raw", *words)
    assert run("generate", "-", "this", *words).out == run("generate", "thiswhat", *words).out


def test_a_dash_without_input_sends_nothing(
    run: Run, pipe: Callable[[bytes], None], long_model: Path
) -> None:
    """As of `git diff | minichat generate "review this" -` without changes."""
    words = ("--model", long_model, *OPTIONS)
    for nothing in (b"", b" \n"):
        pipe(nothing)
        ran = run("generate", "review this", "-", *words)
        assert (ran.code, ran.out) == (2, "") and "standard input is empty" in ran.err
    pipe(b"")
    assert run("generate", "review this", "-", "--raw", *words).code == 0


def test_unread_piped_input_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with open(ours) as end, open(theirs, "w") as other:
        monkeypatch.setattr(sys, "stdin", end)
        assert not unread_input()
        print("a diff", file=other, flush=True)
        assert unread_input()
    assert not unread_input()  # closed
    with open(os.devnull) as nothing, open(__file__) as script:
        for each in (nothing, script):
            monkeypatch.setattr(sys, "stdin", each)
            assert not unread_input()


@pytest.mark.parametrize(
    ("piped", "error"),
    [
        (b"", "The pipe was empty, so nothing was sent"),
        (b" \n", "The pipe was empty"),
        (b"\x89PNG\0\xff", "cannot attach the piped input: it is not UTF-8 text"),
    ],
    ids=["empty", "blank", "binary"],
)
def test_input_that_cannot_be_attached_is_bad_usage(
    run: Run, pipe: Callable[[bytes], None], piped: bytes, error: str
) -> None:
    pipe(piped)
    ran = run("review this")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"minichat: {error}")


@pytest.mark.parametrize(
    "words",
    [
        ["-"],
        ["review this", "-"],
        ["--plain", "-"],
        ["generate", "-"],
        ["generate", "review this", "-"],
        ["generate", "review this", "-", "--raw"],
    ],
)
def test_a_dash_without_a_pipe_is_bad_usage(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        ran = run(*words)
    os.close(ours)
    assert ran == (2, "", "minichat: - stands for the piped input, but nothing is piped\n")


def test_a_dash_is_no_part_of_the_message(run: Run, pipe: Callable[[bytes], None], long_model: Path) -> None:
    pipe(b"+ a line\n")
    asked = run("what is this?", "-", "--model", long_model, *OPTIONS)
    pipe(b"+ a line\n")
    assert asked == run("what is this?", "--model", long_model, *OPTIONS)
    assert asked.code == 0 and asked.out
    pipe(b"")
    assert run("chat", "5", "-", "3", "--plain").err.startswith("minichat: The pipe was empty"), "a minus"


def test_input_that_is_too_large_is_bad_usage(root: Path) -> None:
    ran = ask(root, "review this", stdin=b"x" * 1_000_001)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr.startswith(
        b"minichat: the piped input is larger than 1.00 MB, the limit for attachments"
    )


def test_a_missing_file_is_bad_usage(run: Run) -> None:
    ran = run("look at @./nowhere.py")
    assert (ran.code, ran.err) == (2, "minichat: nothing was sent: no such file: ./nowhere.py\n")


def test_generate_sends_the_name_of_a_file_as_text_and_warns(
    run: Run, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: Callable[[bytes], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("secret")
    pipe(b"")
    words = ("--model", chat_model, *OPTIONS)
    ran = run("generate", "sum up @notes.txt, please", "@nobody", *words)
    assert (ran.code, ran.err) == (
        0,
        "minichat: generate attaches no files, @notes.txt was sent as text; to attach it: "
        "minichat generate TEXT - < notes.txt\n",
    )
    assert run("generate", "sum up @note.txt, @./nowhere.py", *words).err == (
        "minichat: no such file: note.txt; did you mean notes.txt? It was sent as text\n"
        "minichat: no such file: ./nowhere.py. It was sent as text\n"
    )
    assert run("generate", "--raw", "sum up @notes.txt", *words).err == ""
    pipe(b"a mail from me to @notes.txt")
    assert run("generate", "-", *words).err == ""


def test_generate_names_a_file_in_the_home_folder_so_that_a_shell_finds_it(
    run: Run, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell expands no ~ between quotes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my notes.txt").write_text("secret")
    (tmp_path / "notes.txt").write_text("secret")
    ran = run("generate", 'sum up @~/notes.txt and @"~/my notes.txt"', "--model", chat_model, *OPTIONS)
    assert [line.rpartition(" - < ")[2] for line in ran.err.splitlines()] == [
        f"{tmp_path}/notes.txt",
        f"'{tmp_path}/my notes.txt'",
    ]


def test_a_question_in_a_language_without_blanks_is_sent(run: Run, chat_model: Path) -> None:
    ran = run("你好吗？", "--model", chat_model, *OPTIONS)
    assert (ran.code, ran.err) == (0, "") and ran.out


@pytest.mark.parametrize("word", ["hello", "docter", "helo-there"])
def test_one_word_is_no_question_but_a_possible_typo(run: Run, word: str) -> None:
    ran = run(word)
    assert ran.code == 2
    assert f"minichat: unknown command {word!r}; to ask the model: minichat chat {word!r}" in ran.err


def test_a_question_without_quotes_is_suggested_with_them(run: Run) -> None:
    error = run("What", "is", "3", "plus", "4", "--seed", "1").err
    assert "unknown command 'What'; to ask the model: minichat chat 'What is 3 plus 4'; see" in error


def test_the_program_restarts_with_its_options_but_without_the_question() -> None:
    options = parser().parse_args(
        ["chat", "why", "this?", "--model=a", "--temperature=0.5", "--stop=x", "--stop=-y", "--ascii"]
    )
    words = words_of(options, model="org/b")
    assert words[:2] == ["chat", "--model=org/b"]
    found = parser().parse_args(words)
    assert (found.text, found.model, found.temperature, found.stop, found.ascii) == (
        [],
        "org/b",
        0.5,
        ["x", "-y"],
        True,
    )
    assert {**vars(found), "text": options.text, "model": "a"} == vars(options)


def test_only_the_restarted_program_opens_its_chats_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICHAT_RESTARTED", "")
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: ran.append([program, *words]))
    assert not restarted()
    restart(["attach", "--max-tokens=9"])
    python = sys.executable
    assert ran == [[python, python, "-m", "minichat", "attach", "--max-tokens=9"]]
    assert [restarted(), restarted()] == [True, False]


def test_the_restarted_program_removes_what_the_one_before_has_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINICHAT_RESTARTED", "1")
    announce()
    assert capsys.readouterr().out == "minichat: restarting ...\r"
    assert restarted()
    assert capsys.readouterr().out == "\x1b[K"
    assert not restarted()
    assert not capsys.readouterr().out


def test_a_restart_does_not_wait_for_a_terminal_that_control_s_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No screen reads the keys between the two programs."""
    monkeypatch.setenv("MINICHAT_RESTARTED", "1")
    ours, theirs = os.openpty()
    taken = select.poll()
    taken.register(theirs, select.POLLOUT)
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        os.write(ours, b"\x13")
        assert becomes(lambda: not taken.poll(0))
        thread = threading.Thread(target=restarted, daemon=True)
        thread.start()
        thread.join(5)
        stuck = thread.is_alive()
        os.write(ours, b"\x11")
        assert not stuck
        assert os.read(ours, 9).endswith(b"\x1b[K")
    os.close(ours)


# Paths


def test_locate_prints_every_path(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    (tmp_path / "STATE" / "minichat").mkdir(parents=True)
    (tmp_path / "STATE" / "minichat" / "chats.db").touch()
    paths = json.loads(run("locate", "--json").out)
    assert paths.items() >= {name: str(path) for name, path in locate(os.environ).named().items()}.items()
    assert Path(paths["shipped_themes"]).is_dir()
    lines = run("locate").out.splitlines()
    assert len(lines) == len(paths)
    [chats] = [line for line in lines if line.startswith("chats ")]
    assert chats.split() == ["chats", paths["chats"]]
    assert sum("(does not exist yet)" in line for line in lines) >= 5


@pytest.mark.parametrize("command", ["locate", "ps", "doctor"])
def test_folders_that_cannot_be_read_are_empty(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """For example another user's folder in HOME; here a name that is too long, since root can read
    everything.
    """
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / ("x" * 300)))
    ran = run(command)
    assert (ran.code, ran.err) == (0, "")
    assert {"locate": "(does not exist yet)", "ps": "no engine is running", "doctor": "cannot read"}[
        command
    ] in ran.out


def test_fetch_reports_why_it_failed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    ran = run("fetch", "org/model")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "minichat: org/model is not on this machine, and the hub cannot be reached\n"
    ran = run("fetch", "pocket", "--json")
    assert Path(json.loads(ran.out)["folder"]).name == "pocket"
