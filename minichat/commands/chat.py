"""`minichat chat`: a plain chat on the terminal, one line per message."""

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from importlib import import_module

from engine.api.commands import Abort
from engine.api.errors import FULL, EngineError, RequestTooLong
from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.host.thread import EngineThread
from minichat.chats.model import Message
from minichat.commands.generate import ReplyCosts
from minichat.commands.options import (
    completes,
    engine_config,
    failed,
    opening,
    refuse_no_tokens,
    reply_adapter,
    running,
    sampling,
)
from minichat.completions.tab_names import complete_names
from minichat.doing import doing_late, waiting
from minichat.plural import plural
from minichat.session.attachments import CannotAttach, attach, listed, missing
from minichat.shell.streams import harmless

SET = """\
/set NAME VALUE change how replies are sampled: temperature 0.5, stop ["A"] ...
/set NAME       change it back"""
_JSON = (  # parameters whose values are no single number or text
    *("logit_bias", "stop_ids", "logprob_token_ids", "allowed_token_ids", "bad_words", "grammar"),
)
_LEAVING = ("exit", "quit")  # typed on a terminal; a script that pipes them sends them
HELP = f"""\
@FILE           attach a file, anywhere in a message
/new            start a new conversation
{SET}
/stats          show engine statistics
/help           show this list
/quit           quit (also exit, Ctrl+D); Ctrl+C stops a reply, twice quits"""


def run(options: argparse.Namespace, first: Message | None = None) -> int:
    try:
        params, adapter = sampling(options), reply_adapter(options)
        refuse_no_tokens(params)
        with running(engine_config(options)) as host:
            system = None if completes(host, options) else options.system
            return Talk(host, params, system, adapter).run(first)
    except EngineError as error:
        return failed(error, options)


class Talk:
    """One conversation, read and answered line by line."""

    def __init__(
        self, host: EngineThread, params: SamplingParams, system: str | None, adapter: str = ""
    ) -> None:
        self.host, self.params, self.adapter = host, params, adapter
        self.initial = params
        self.unanswered = 0  # messages without a reply
        self.opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.opening)

    def run(self, first: Message | None = None) -> int:
        if sys.stdin.isatty():
            with suppress(ImportError):  # not installed everywhere; input() still works
                readline = import_module("readline")  # enables arrow keys and history
                complete_names(readline)
                if os.environ.get("TERM") != "dumb":
                    readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message
            shot = self.host.snapshot()
            ways = "/help for commands, /quit to leave"
            _say(f"minichat: {shot.model} on {shot.device}, {shot.blocks.size:,} KV blocks; {ways}")
        if first is not None:
            _say(f"> {first.text}")
            self._send(first)
        while (line := self._read()) is not None:
            if line.startswith("/") and "\n" not in line:
                if line.strip() == "/quit":
                    break
                self._command(line)
            elif line.strip() in _LEAVING and sys.stdin.isatty():
                break
            elif not _is_text(line):
                self._refuse("the line is not UTF-8 text and was not sent")
            elif line.strip():
                self._answer_with_files(line)
        return 1 if self.unanswered and not sys.stdin.isatty() else 0

    def _read(self) -> str | None:
        """The next line; None at the end, or after Ctrl+C twice: the first may have come too late."""
        typed = sys.stdin.isatty()
        for last in (not typed, True):
            try:
                return _input("> ") if typed else input()
            except EOFError:
                return None
            except KeyboardInterrupt:
                _say("" if last else "\nminichat: press Ctrl+C again to quit")
                if last:
                    break
        return None

    def _command(self, line: str) -> None:
        match line.strip().split(maxsplit=2):
            case ["/new"]:
                self.messages = list(self.opening)
            case ["/set", name]:
                self._set(name, getattr(self.initial, name, None))
            case ["/set", name, value]:
                self._set(name, _value(value))
            case ["/set", *_]:
                _say(SET)
            case ["/stats"]:
                self._stats()
            case ["/help"]:
                _say(HELP)
            case _:
                _report(f"unknown command {line}; type /help for the list")

    def _set(self, name: str, value: object) -> None:
        if name == "n":
            _report("n: a message gets one reply here; minichat generate takes --n")
            return
        if name == "logit_bias" and isinstance(value, dict):  # names in JSON are texts
            value = {
                int(key) if key.isdecimal() and len(key) < 20 else key: each for key, each in value.items()
            }
        try:
            params = self.params.changed(**{name: value})
            refuse_no_tokens(params)
            self.params = params
        except EngineError as error:
            short = name in _JSON and not isinstance(value, list | dict)
            example = ': {"5": 1.5}' if name == "logit_bias" else ""
            _report(f"{error}{f'; write it as JSON{example}' if short else ''}")

    def _refuse(self, why: str) -> None:
        self.unanswered += 1
        _report(why)

    def _answer_with_files(self, line: str) -> None:
        """Attach the files that the line mentions, as the screen does, and answer it."""
        try:
            files = attach(line)
        except CannotAttach as error:
            self._refuse(str(error))
            return
        for each in missing(line):
            _report(each.sent_without)
        self._send(Message(0, "user", line, attachments=files))

    def _send(self, message: Message) -> None:
        if message.attachments and sys.stdout.isatty():
            print(f"\x1b[2mattached: {listed(message.attachments)}\x1b[0m")
        self._answer(message.whole)

    def _answer(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        began, first, at_first = time.monotonic(), None, 0
        tokens, pieces, stream, decoding = 0, [], None, 0.0
        try:
            with doing_late("waiting for the reply"):  # the engine may be compiling kernels
                stream = self.host.submit(self._prompt(), self.params, adapter=self.adapter)
                stream.accepted.result()  # a refusal raises here
            opened = opening(self.host, self.params)
            for delta in waiting(stream, "waiting for the reply", lambda each: each.text):
                tokens, decoding = tokens + len(delta.tokens), delta.decoding
                if first is None and tokens:
                    first, at_first = time.monotonic() - began, tokens
                if delta.text:
                    pieces.append(opened + delta.text)
                    opened = ""
                    print(harmless(pieces[-1]), end="", flush=True)
        except EngineError as error:
            self.messages.pop()
            grown = isinstance(error, RequestTooLong) and len(self.messages) > 1
            ways = "; /new starts a new conversation" if grown else ""
            self._refuse(f"{error}{ways}")
            return
        except KeyboardInterrupt:
            if stream is not None:
                with suppress(EngineError):  # refused in the meantime
                    self.host.send(Abort((stream.id,))).result()
            print(" [stopped]")
        else:
            print()
            self._report_end(delta, tokens)
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        if sys.stdout.isatty():
            took = time.monotonic() - began
            rate = ReplyCosts(0, tokens, took, first, at_first, decoding=decoding).rate
            speed = f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
            print(f"\x1b[2m{plural(tokens, 'token')}{f', {speed} tok/s' if rate else ''}\x1b[0m")

    def _prompt(self) -> list[dict[str, str]] | str:
        """As on the screen: without a template it is the concatenated texts."""
        if self.host.has_template:
            return self.messages
        return "".join(each["content"] for each in self.messages)

    def _report_end(self, last: Delta, tokens: int) -> None:
        """Report a reply that failed or is not complete."""
        if last.finish is Finish.FAILED:
            self._refuse(last.error)
        elif last.finish is Finish.LENGTH:
            most = self.params.max_tokens
            if most is None or sys.stdout.isatty():  # a script knows what it set
                full = FULL[self.host.snapshot().context_bound]
                why = full if most is None else f"max_tokens is {most}"
                _report(f"the reply was cut off after {plural(tokens, 'token')}: {why}")

    def _stats(self) -> None:
        shot = self.host.snapshot()
        _say(
            f"step {shot.step}, KV {shot.blocks.in_use} in use + {shot.blocks.cached} cached "
            f"of {shot.blocks.size} blocks, prefix hits {shot.prefix_hit_rate:.0%}, "
            f"engine TTFT {shot.ttft.p50 * 1000:.0f} ms, "
            f"next token {shot.itl.p50 * 1000:.1f} ms (p99 {shot.itl.p99 * 1000:.1f})"
        )


def _say(text: str, end: str = "\n") -> None:
    """Print what is not part of a reply: on the terminal if somebody types there and replies go to a file."""
    file = sys.stderr if _redirected() else sys.stdout
    print(text, end=end, file=file, flush=True)


def _input(prompt: str) -> str:
    if not _redirected():
        return input(prompt)  # readline has to know it
    _say(prompt, end="")
    return input()


def _redirected() -> bool:
    return sys.stdin.isatty() and not sys.stdout.isatty()


def _report(text: str) -> None:
    """Print what is not part of a reply: to standard error, as output may go to a file."""
    print(f"minichat: {text}", file=sys.stderr)


def _is_text(line: str) -> bool:
    """Whether the line is valid text; undecodable bytes arrive as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in line)


def _value(text: str) -> object:
    """A value in JSON, another number, or a text without quotes."""
    for kind in (json.loads, int, float):
        try:
            return kind(text)
        except (ValueError, RecursionError):
            continue
    return text
