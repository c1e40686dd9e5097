"""`minichat generate`: print one reply to standard output, and nothing else."""

import argparse
import json
import os
import shlex
import stat
import sys
import time
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

from engine.api.errors import FULL, BadInput, BadParams, EngineError
from engine.api.events import Delta
from engine.api.params import Grammar, SamplingParams
from engine.api.places import expanded
from engine.api.request import Finish
from minichat.chats.model import Attachment, Message
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
from minichat.doing import doing_late, waiting
from minichat.models.progress import size
from minichat.plural import plural
from minichat.session.attachments import MOST, PIPED, mentioned, missing
from minichat.shell.first import piped_bytes
from minichat.shell.streams import harmless

_RANDOM_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")
_BEAM_FIELDS = ("length_penalty", "early_stopping")
_QUOTED = 40  # characters of a text in an error
_STDIN = "-"  # as an argument: append standard input


def run(options: argparse.Namespace) -> int:
    try:
        if options.draft is not None and options.speculate != "draft":
            raise BadInput("--draft requires --speculate draft")
        if options.deadline_ms is not None:
            _check_deadline(options)
        _refuse_idle(options)
        if options.raw and options.system is not None:
            raise BadInput("--system has no effect with --raw")
        reply_adapter(options)  # refused before anything is loaded
        params = sampling(options)
        if (grammar := _grammar(options)) is not None:
            params = params.changed(grammar=grammar)
        refuse_no_tokens(params)
        text = _prompt(options)
        config = engine_config(options, max_running=max(8, params.beams, params.samples))
        with running(config) as host:
            raw = options.raw or completes(host, options)
            answer = _reply if params.n == 1 else _replies
            opened = "" if raw else opening(host, params)
            code = answer(host, _messages(options, text) if not raw else text, params, options, opened)
        if options.command == "generate" and not options.raw:
            _warn_of_files(options)
        if sys.stderr.isatty() and unread_input():
            print("minichat: standard input was not read; add - to include it", file=sys.stderr)
        return code
    except BadParams as error:
        name = _form(options) if error.field == "grammar" else f"{error.field}:"
        return failed(BadInput(f"{name} {error.problem}"), options)
    except EngineError as error:
        return failed(error, options)


def _check_deadline(options: argparse.Namespace) -> None:
    if options.policy in ("fcfs", "priority"):
        raise BadInput(f"--deadline-ms has no effect with --policy {options.policy}; use --policy latency")
    if not options.deadline_ms >= 0:
        raise BadInput(f"--deadline-ms must be at least 0, got {options.deadline_ms:g}")


def _refuse_idle(options: argparse.Namespace) -> None:
    """Refuse options that have no effect with or without --beams."""
    searches = (options.beams or 1) > 1
    for name in _RANDOM_FIELDS if searches else _BEAM_FIELDS:
        value = getattr(options, name)
        if value is None or (name == "temperature" and value == 0):
            continue
        option = f"--{name.replace('_', '-')}"
        if searches:
            raise BadInput(f"{option} has no effect with --beams: a beam search does not sample")
        raise BadInput(f"{option} requires --beams")


def _prompt(options: argparse.Namespace) -> str:
    """The prompt. It may be empty only with --raw: then it is the start token alone."""
    words = [word for word in options.text if word != _STDIN]
    if (dash := words != options.text) and sys.stdin.isatty():
        raise BadInput(f"{_STDIN} stands for the piped input, but nothing is piped")
    piped = _piped() if dash or not words else ""
    text = " ".join(words)
    if dash and text.strip() and not (options.raw or piped.strip()):
        raise BadInput("standard input is empty, so nothing was sent; without - the text is sent alone")
    if options.raw or not text.strip() or not piped.strip():
        text += piped
    else:  # attach the input, as the screen does
        text = Message(0, "user", f"{text} @{PIPED}", attachments=(Attachment(PIPED, piped),)).whole
    if not options.raw and not text.strip():
        raise BadInput("no text; pass it as an argument or on standard input")
    return text


def _warn_of_files(options: argparse.Namespace) -> None:
    """Name the files that an argument mentions. They are not attached: scripts pass texts of others."""
    text = " ".join(options.text)
    for each in missing(text):
        if not each.folder:
            print(f"minichat: {each.sentence} It was sent as text", file=sys.stderr)
    for name in mentioned(text):
        print(
            f"minichat: generate attaches no files, @{name} was sent as text; to attach it: "
            f"minichat generate TEXT - < {shlex.quote(str(expanded(name)))}",
            file=sys.stderr,
        )


def unread_input() -> bool:
    """Whether unread data is waiting in a pipe. A script's own input is not a pipe."""
    try:
        waiting = ioctl(sys.stdin.fileno(), FIONREAD, bytes(4))
    except (OSError, ValueError):  # standard input supports no FIONREAD
        return False
    return stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode) and any(waiting)


def _piped() -> str:
    if sys.stdin.isatty():
        return ""
    piped = piped_bytes()
    if len(piped) > MOST:
        raise BadInput(f"standard input is larger than {size(MOST)}, the limit for one message")
    try:
        return piped.decode()
    except UnicodeDecodeError:
        raise BadInput("standard input is not UTF-8 text") from None


def _form(options: argparse.Namespace) -> str:
    """The option that set the grammar, for errors."""
    if options.json_schema is not None:
        return f"--json-schema {options.json_schema}"
    return "--choice:" if options.regex is None else "--regex:"


def _grammar(options: argparse.Namespace) -> Grammar | None:
    if options.regex is not None:
        return Grammar("regex", options.regex)
    if options.choice:
        return Grammar("choice", json.dumps(options.choice))
    if options.json_schema is None:
        return None
    try:
        return Grammar("json", Path(options.json_schema).read_text("utf-8"))
    except OSError as error:
        if options.json_schema.lstrip().startswith("{"):
            named = options.json_schema[:_QUOTED]
            raise BadInput(f"--json-schema takes the name of a file, got the text {named!r}") from None
        raise BadInput(f"cannot read --json-schema {options.json_schema}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"--json-schema {options.json_schema} is not UTF-8 text") from None


def _deadline(options: argparse.Namespace) -> float | None:
    """Seconds until the first token is due."""
    return None if options.deadline_ms is None else options.deadline_ms / 1000


def _messages(options: argparse.Namespace, text: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _reply(host, prompt, params, options: argparse.Namespace, opened: str) -> int:  # type: ignore[no-untyped-def]
    as_json, began = options.json, time.monotonic()
    with doing_late("waiting for the reply"):  # the engine may be compiling kernels
        stream = host.submit(prompt, params, deadline=_deadline(options), adapter=reply_adapter(options))
        stream.accepted.result()  # a refusal raises here: it is bad usage, not a failed reply
    pieces, tokens, first, at_first = [], 0, None, 0
    late = params.beams > 1 or params.samples > 1  # the tokens of the best one come at the end
    for delta in waiting(stream, "waiting for the reply", lambda each: each.text and not as_json):
        tokens += len(delta.tokens)
        if first is None and (tokens or late):
            first, at_first = time.monotonic(), tokens or 1
        if delta.text:
            pieces.append(opened + delta.text)
            opened = ""
            if not as_json:
                sys.stdout.write(harmless(pieces[-1]))
                sys.stdout.flush()
    ended = time.monotonic()
    if as_json:
        costs = ReplyCosts(stream.prompt_tokens, tokens, ended - began, (first or ended) - began)
        print(json.dumps(_record("".join(pieces), delta, costs)))
    elif (text := "".join(pieces)) and not text.endswith("\n"):
        print()
    if options.verbose:
        times = ended - began, (first or ended) - began
        costs = ReplyCosts(stream.prompt_tokens, tokens, *times, at_first, decoding=delta.decoding)
        print(f"minichat: {costs}", file=sys.stderr)
    if delta.finish is Finish.FAILED:
        print(f"minichat: {delta.error}", file=sys.stderr)
        return 1
    return _report_cut(host, "the reply", delta.finish, "".join(pieces), tokens, params, as_json)


def _record(text: str, last: Delta, costs: "ReplyCosts") -> dict[str, object]:
    """A reply as JSON. `last`: its last delta."""
    assert last.finish is not None and costs.first is not None
    return {
        "text": text,
        "finish": last.finish.value,
        "error": last.error or None,
        "prompt_tokens": costs.prompt,
        "tokens": costs.tokens,
        "first_token_s": round(costs.first, 4),
        "seconds": round(costs.seconds, 4),
    }


def _report_cut(  # type: ignore[no-untyped-def]
    host, which: str, finish: Finish | None, text: str, tokens: int, params: SamplingParams, as_json: bool
) -> int:
    """Report a reply that ended too early. Return the exit code: 1 if it lacks a required form."""
    if finish is not Finish.LENGTH:
        return 0
    cut = f"minichat: {which} was cut off after {plural(tokens, 'token')}"
    if params.grammar is not None:
        from engine.grammar.source import matches

        if not matches(params.grammar, text):
            print(f"{cut} and is incomplete", file=sys.stderr)
            return 1
    if params.max_tokens is None and not as_json:
        print(f"{cut}: {FULL[host.snapshot().context_bound]}", file=sys.stderr)
    return 0


def _replies(host, prompt, params, options: argparse.Namespace, opened: str) -> int:  # type: ignore[no-untyped-def]
    """Print several replies once all have ended, numbered or as a JSON list."""
    began = time.monotonic()
    with doing_late("waiting for the replies"):
        stream = host.submit(prompt, params, deadline=_deadline(options), adapter=reply_adapter(options))
        stream.accepted.result()
    received: dict[int, list[tuple[float, Delta]]] = {}
    for delta in waiting(stream, "waiting for the replies", lambda each: False):
        received.setdefault(delta.choice, []).append((time.monotonic(), delta))
    count = sum(len(delta.tokens) for each in received.values() for _, delta in each)
    if options.verbose:
        costs = ReplyCosts(stream.prompt_tokens, count, time.monotonic() - began, replies=len(received))
        print(f"minichat: {costs}", file=sys.stderr)
    code, records = 0, []
    for number, (_, deltas) in enumerate(sorted(received.items()), 1):
        text = "".join(each.text for _, each in deltas)
        tokens = sum(len(each.tokens) for _, each in deltas)
        first = next((at for at, each in deltas if each.tokens), deltas[-1][0])
        ended, last = deltas[-1]
        last = last if last.finish else delta  # the engine is gone
        broken = last.finish is Finish.FAILED
        costs = ReplyCosts(stream.prompt_tokens, tokens, ended - began, first - began)
        shown = text and opened + text
        records.append(_record(shown, last, costs) | {"score": last.score})
        if not options.json and (text or not broken):
            score = "" if last.score is None else f" {last.score:.3f}"
            print(f"[{number}]{score}\n{harmless(shown)}" + "\n" * (number < len(received)))
        if broken:
            print(f"minichat: reply {number}: {last.error}", file=sys.stderr)
            code = 1
        else:
            cut = _report_cut(host, f"reply {number}", last.finish, text, tokens, params, options.json)
            code = max(code, cut)
    if options.json:
        print(json.dumps(records))
    return code


@dataclass(frozen=True, slots=True)
class ReplyCosts:
    """The tokens and seconds of a reply, or of several together, as a line for standard error: standard
    output has only replies.
    """

    prompt: int
    tokens: int
    seconds: float
    first: float | None = None  # seconds until the first piece; None: not known
    at_first: int = 0  # the tokens of that piece, which tell nothing about the rate
    replies: int = 1
    decoding: float = 0.0  # seconds from the first token to the last, as the engine says; 0: not known

    @property
    def rate(self) -> float:
        """Tokens per second after the first one, or after the first piece; 0: not known.

        Pieces may wait to be read, and arrive together.
        """
        if self.decoding:
            return (self.tokens - 1) / self.decoding
        rest, after = self.tokens - self.at_first, self.seconds - (self.first or 0.0)
        return rest / after if self.first is not None and rest > 0 and after > 0 else 0.0

    def __str__(self) -> str:
        note = "" if self.first is None else f"; first token after {self.first:.3f} s"
        speed = f"{self.rate:.1f}" if self.rate >= 0.95 else f"{self.rate:.2g}"
        rate = f", then {speed} tok/s" if self.rate else ""
        prompt, tokens = plural(self.prompt, "token"), plural(self.tokens, "token")
        reply = f"reply {tokens}" if self.replies == 1 else f"{tokens} of {self.replies} replies"
        return f"prompt {prompt}, {reply} in {self.seconds:.3f} s{note}{rate}"
