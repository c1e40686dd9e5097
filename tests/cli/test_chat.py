"""`minichat chat` with piped lines."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from engine.api.params import SamplingParams
from engine.host.stream import Stream
from engine.host.thread import EngineThread
from minichat.commands import chat
from tests.cli.conftest import Ran, Run

Talk = Callable[..., Ran]


@pytest.fixture
def talk(run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    def lines(*typed_lines: str, options: tuple[object, ...] = ()) -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in typed_lines)))
        plain = ("--temperature", 0, "--max-tokens", 4, "--max-context", 120)
        return run("chat", "--model", chat_model, *plain, *options)

    return lines


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """The messages of each request."""
    seen: list[list[dict[str, str]]] = []
    submit = EngineThread.submit

    def listening(self: EngineThread, prompt: list[dict[str, str]], *rest: object, **more: object) -> object:
        seen.append(list(prompt))
        return submit(self, prompt, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineThread, "submit", listening)
    return seen


def test_every_line_gets_a_reply(talk: Talk, prompts: list[list[dict[str, str]]]) -> None:
    ran = talk("a", "", "  ", "b")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("\n")
    assert [[message["role"] for message in prompt] for prompt in prompts] == [
        ["user"],
        ["user", "assistant", "user"],
    ]
    assert ran.out.startswith(prompts[1][1]["content"] + "\n")


def test_new_clears_the_chat_and_keeps_the_system_prompt(
    talk: Talk, prompts: list[list[dict[str, str]]]
) -> None:
    talk("a", "/new", "b", options=("--system", "be brief"))
    assert prompts == [
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}] for text in "ab"
    ]


def test_a_mentioned_file_is_attached(
    talk: Talk, prompts: list[list[dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`@file` means the same here as on the screen."""
    monkeypatch.chdir(tmp_path)
    Path("n.txt").write_text("1\n2\n")
    ran = talk("a @n.txt", "@n.txf", "@./m", "@dataclass")
    assert [prompt[-1]["content"] for prompt in prompts] == [
        "a @n.txt\n\nn.txt:\n```txt\n1\n2\n```",
        "@n.txf",
        "@dataclass",
    ]
    assert ran.err.splitlines() == [
        "minichat: no such file: n.txf; did you mean n.txt? Sent without it",
        "minichat: nothing was sent: no such file: ./m",
    ]
    assert ran.code == 1 and "minichat:" not in ran.out


def test_a_missing_path_is_refused_and_what_looks_like_a_file_is_sent_as_text(
    talk: Talk, prompts: list[list[dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("src").mkdir()
    Path("src", "main.py").touch()
    refused = ("/no/log", "./w/log", "../no.log", "~/no/log")
    text = ("gone.log", "w/gone.log", "src/gone", "scr/main", "w/gone", "types/node")
    lines = [f"@{each}" for each in (*refused, *text, '"no log"')]
    ran = talk(*(each for line in lines for each in (line, "/new")))
    assert [prompt[-1]["content"] for prompt in prompts] == [f"@{each}" for each in text]
    assert ran.err.splitlines() == [
        *(f"minichat: nothing was sent: no such file: {each}" for each in refused),
        *(f"minichat: no such file: {each}. Sent without it" for each in text[:3]),
        "minichat: no such file: scr/main; did you mean src/main.py? Sent without it",
        "minichat: nothing was sent: no such file: no log",
    ]
    assert ran.code == 1


def test_biases_are_written_as_in_the_servers_apis(talk: Talk) -> None:
    ran = talk('/set logit_bias {"5": 100}', "a", "/set logit_bias [[5, 100]]", "/new", "a")
    assert (ran.code, ran.err) == (0, "")
    first, second = ran.out.splitlines()
    assert first == second and len(set(first)) == 1


def test_a_chat_without_tokens_is_refused(talk: Talk) -> None:
    ran = talk("a", options=("--max-tokens", 0))
    says = "--max-tokens: must be a whole number from 1; with 0 there is nothing to print"
    assert (ran.code, ran.out, ran.err) == (2, "", f"minichat: {says}\n")


def test_help_fits_80_columns(talk: Talk) -> None:
    """A plain terminal breaks longer lines in the middle of a word."""
    assert max(map(len, talk("/help", "/quit").out.splitlines())) < 80


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("/set temperature hot", "minichat: temperature: must be a number from 0 to 100, not 'hot'"),
        ("/set temperature -1", "temperature: must be a number from 0 to 100, not -1"),
        ("/set warmth 1", "warmth: is not a sampling parameter; available: temperature, top_k"),
        ("/set top_k 1.5", "top_k: must be a whole number from 0"),
        ("/set warmth", "warmth: is not a sampling parameter; available: temperature, top_k"),
        ("/set n 2", "minichat: n: a message gets one reply here; minichat generate takes --n"),
        ("/set seed 1 2", "seed: must be a whole number"),
        ("/set stop_ids 5", "stop_ids: must be a list, not 5; write it as JSON"),
        ("/set grammar a+", "grammar: must be a kind and a text, not 'a+'; write it as JSON"),
        ('/set grammar {"kind": "xml", "text": "a"}', "not 'xml'\n"),  # it is JSON
        ("/set max_tokens 0", "max_tokens: must be a whole number from 1; with 0 there is nothing to print"),
        ('/set logit_bias {"a": 1}', "logit_bias: must be a whole number from 0 to 2147483647, not 'a'"),
        ("/set logit_bias 5", """logit_bias: must be a list, not 5; write it as JSON: {"5": 1.5}"""),
        (f"/set seed {'[' * 5000}", "seed: must be a whole number"),
        ("/sing", "unknown command /sing; type /help for the list"),
    ],
)
def test_a_bad_command_is_refused(talk: Talk, line: str, reply: str) -> None:
    ran = talk(line, "/quit", "never answered")
    assert (ran.code, ran.out) == (0, "")
    assert reply in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("/set", "/set NAME VALUE change how replies are sampled"),
        ("/stats", "step 0, KV 0 in use + 0 cached"),
    ],
)
def test_commands_print_a_reply(talk: Talk, line: str, reply: str) -> None:
    ran = talk(line, "/quit", "never answered")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(reply)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--seed", 5), "--seed has no effect with --temperature 0"),
        (("--top-p", 0.5), "--top-p has no effect with --temperature 0"),
        (("--plain", "--engine", "process"), "--engine has no effect with --plain"),
        (("--plain", "--ascii"), "--ascii has no effect with --plain"),
        (("--n", 4), "unrecognized arguments: --n; minichat generate takes --n; see minichat chat --help"),
    ],
)
def test_options_without_effect_are_bad_usage(talk: Talk, options: tuple[object, ...], error: str) -> None:
    ran = talk("a", options=options)
    assert (ran.code, ran.out) == (2, "")
    assert error in ran.err and ran.err.count("\n") == 1


def test_changed_options_apply_from_the_next_reply(talk: Talk) -> None:
    four, one = talk("a").out, talk("/set max_tokens 1", "a").out
    assert four.startswith(one.rstrip("\n")) and four != one
    assert talk("/set max_tokens 1", "/set max_tokens", "a").out == four


@pytest.mark.parametrize(
    "line",
    [
        "/set stop_ids [5, 6]",
        '/set stop ["THE END", "THEN"]',
        "/set stop THE END",
        "/set temperature .5 ",
        "/set early_stopping never",
        '/set grammar {"kind": "regex", "text": "a b+"}',
    ],
)
def test_values_may_be_json_or_have_blanks(talk: Talk, line: str) -> None:
    ran = talk(line, "/quit")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_reply_cut_off_by_the_context_is_reported(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/set ignore_eos true\na\n"))
    ran = run("chat", "--model", chat_model, "--temperature", 0, "--max-context", 80)
    assert ran.code == 0
    assert re.fullmatch(r"minichat: the reply was cut off after \d+ tokens: the context is full\n", ran.err)


def test_control_c_before_the_first_token_stops_the_reply_and_the_chat_continues(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = EngineThread.submit
    streams: list[Stream] = []

    def interrupted(self: EngineThread, *given: Any, **more: Any) -> Stream:
        streams.append(stream := submit(self, *given, **more))
        if len(streams) == 1:
            stream.accepted = Mock(result=Mock(side_effect=[KeyboardInterrupt, stream.accepted.result()]))
        return stream

    monkeypatch.setattr(EngineThread, "submit", interrupted)
    ran = talk("a", "b")
    assert (ran.code, ran.err, len(streams)) == (0, "", 2)
    assert ran.out.startswith(" [stopped]\n") and ran.out.count("\n") == 2


def test_control_c_that_came_after_the_reply_does_not_quit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = Mock(side_effect=[KeyboardInterrupt, "/set", KeyboardInterrupt, KeyboardInterrupt])
    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda: True))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    host = Mock()
    host.snapshot.return_value.blocks.size = 4096
    assert chat.Talk(host, SamplingParams(), None).run() == 0
    again = "\nminichat: press Ctrl+C again to quit\n"
    assert capsys.readouterr().out.endswith(f"{again}{chat.SET}\n{again}\n")


def on_terminal(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    """Type these lines on a terminal that shows standard output."""
    monkeypatch.setattr("builtins.input", Mock(side_effect=[*lines, EOFError]))
    monkeypatch.setattr(sys, "stdin", Mock(isatty=lambda: True, fileno=Mock(side_effect=ValueError)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


@pytest.mark.parametrize(("option", "term"), [(("--plain",), "xterm"), ((), "dumb")])
def test_a_chat_goes_on_after_the_first_message_on_a_terminal(
    run: Run,
    chat_model: Path,
    prompts: list[list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    option: tuple[str, ...],
    term: str,
) -> None:
    monkeypatch.setenv("TERM", term)
    on_terminal(monkeypatch, ["b", "/quit"])
    ran = run("chat", *option, "/quit is", "this?", "--model", chat_model, "--max-tokens", 4)
    assert ran.code == 0
    assert [prompt[-1]["content"] for prompt in prompts] == ["/quit is this?", "b"]
    assert len(prompts[1]) == 3 and "\n> /quit is this?\n" in ran.out


def test_a_first_message_whose_file_is_missing_is_reported_on_a_terminal(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch, [])
    ran = run("chat", "--plain", "read @./nowhere.py", "--model", chat_model)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "minichat: nothing was sent: no such file: ./nowhere.py\n"


def test_only_replies_go_to_a_file(run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch, ["a", "/stats"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    ran = run("chat", "--plain", "--model", chat_model, "--max-tokens", 4, "--temperature", 0)
    assert ran.out == run("generate", "a", "--model", chat_model, "--max-tokens", 4, "--temperature", 0).out
    assert "/help for commands, /quit to leave\n> > step " in ran.err


def test_a_first_message_is_answered_once_if_the_output_is_no_terminal(
    run: Run, chat_model: Path, prompts: list[list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch, ["b"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    words = ("--model", chat_model, "--max-tokens", 4, "--temperature", 0)
    assert run("chat", "--plain", "a", *words) == run("generate", "a", *words)
    assert [len(prompt) for prompt in prompts] == [1, 1]


def test_a_conversation_that_is_too_long_is_reported_and_continues(talk: Talk) -> None:
    ran = talk("x" * 200, "a")
    assert ran.code == 1
    assert " tokens; " in ran.err and "Shorten the prompt" in ran.err and "/new" not in ran.err
    assert "; /new starts a new conversation" in talk("x" * 60, "y" * 60).err
    assert talk("a").out == ran.out


@pytest.mark.parametrize(
    "encoding", ["utf-8:strict", pytest.param("utf-8:surrogateescape", marks=pytest.mark.soak)]
)
def test_a_line_that_is_not_text_is_reported_and_the_chat_continues(
    root: Path, chat_model: Path, encoding: str
) -> None:
    words = ["--model", str(chat_model), "--temperature=0", "--max-tokens=4"]
    ended = subprocess.run(
        [sys.executable, "-m", "minichat", *words],
        cwd=root,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        input=b"gr\xfcn\n/stats\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == b"minichat: the line is not UTF-8 text and was not sent\n"
    assert ended.stdout.startswith(b"step 0")


def test_a_model_without_a_template_completes_the_text(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the screen and in `generate`."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("the\ncat\n"))
    words = ("--model", model, "--temperature", 0, "--max-tokens", 4)
    ran = run("chat", *words, "--system", "be brief")
    said = f"minichat: {model} has no chat template; completing the text"
    assert (ran.code, ran.err) == (0, f"{said}; --system has no effect\n")
    first, second = ran.out.splitlines()
    assert run("generate", *words, "the") == (0, f"{first}\n", f"{said}\n")
    assert run("generate", *words, "--raw", f"the{first}cat") == (0, f"{second}\n", "")


def test_plain_minichat_is_a_chat(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run("--model", model) == run("chat", "--model", model)


def typed(root: Path, model: Path, lines: bytes, *words: str, term: str) -> bytes:
    """What a terminal shows after these lines were typed."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "minichat", "--model", str(model), "--blocks", "50", *words]
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    os.write(ours, lines)
    ran = subprocess.run(command, cwd=root, env=os.environ | {"TERM": term}, timeout=100, **ends)  # type: ignore[call-overload]
    os.close(theirs)
    output = os.read(ours, 10_000)
    os.close(ours)
    assert ran.returncode == 0
    return output


@pytest.mark.soak
def test_a_dumb_terminal_gets_the_line_mode(root: Path, chat_model: Path) -> None:
    output = typed(root, chat_model, b"/quit\n", term="dumb")
    assert b"/help for commands" in output and b"\x1b" not in output


@pytest.mark.soak
def test_an_arrow_key_recalls_a_line(root: Path, chat_model: Path) -> None:
    pytest.importorskip("readline")
    output = typed(root, chat_model, b"/stats\n\x1b[A\n/quit\n", "--plain", term="xterm")
    assert output.count(b"prefix hits") == 2 and b"no such command" not in output


@pytest.mark.soak
def test_pasted_lines_are_one_message(root: Path, chat_model: Path) -> None:
    pytest.importorskip("readline")
    paste = b"\x1b[200~/stats\n/stats\x1b[201~"
    output = typed(root, chat_model, paste + b"\n/quit\n", "--plain", term="xterm")
    assert b"prefix hits" not in output and b"unknown command" not in output
    assert output.count(b" tok/s") == 1


@pytest.mark.soak
@pytest.mark.parametrize("word", ["exit", "quit"])
def test_words_that_leave_other_programs_leave_this_one(root: Path, chat_model: Path, word: str) -> None:
    output = typed(root, chat_model, f"/stats\n{word}\n".encode(), "--plain", term="xterm")
    assert b"prefix hits" in output and b" tok/s" not in output


def test_a_script_may_send_the_words_that_leave(
    run: Run, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("quit\n"))
    assert run("chat", "--plain", "--model", chat_model, "--max-tokens", 2).out
