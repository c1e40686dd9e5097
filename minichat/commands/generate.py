"""`minichat generate`: one reply on standard output, and nothing else there."""

import argparse
import json
import sys
import time
from pathlib import Path

from engine.errors import BadInput, EngineError
from engine.params import Grammar
from engine.request import Finish
from minichat.commands.options import engine_config, failed, running, sampling


def run(options: argparse.Namespace) -> int:
    try:
        params = sampling(options).changed(grammar=_grammar(options))
        text = _prompt(options)
        config = engine_config(options, max_running=max(8, params.beams, params.samples))
        with running(config) as host:
            raw = options.raw
            if not raw and not host.has_template:
                print(
                    f"minichat: {config.model} has no chat template; completing the text (--raw)",
                    file=sys.stderr,
                )
                raw = True
            answer = _reply if params.n == 1 else _replies
            return answer(host, _messages(options, text) if not raw else text, params, options.json)
    except EngineError as error:
        return failed(error)


def _prompt(options: argparse.Namespace) -> str:
    """An empty one is the start token alone, which no message begins with."""
    text = _piped() if options.text is None else str(options.text)
    if not options.raw and not text.strip():
        raise BadInput("there is no text: give it as an argument or on standard input")
    return text


def _piped() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 text: {error}") from None


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
        raise BadInput(f"--json-schema {options.json_schema} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"--json-schema {options.json_schema} is not UTF-8 text: {error}") from None


def _messages(options: argparse.Namespace, text: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _reply(host, prompt, params, as_json: bool) -> int:  # type: ignore[no-untyped-def]
    began = time.monotonic()
    stream = host.submit(prompt, params)
    pieces, tokens, first = [], 0, None
    for delta in stream:
        first = first or time.monotonic()
        tokens += len(delta.tokens)
        pieces.append(delta.text)
        if not as_json:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    ended = time.monotonic()
    if as_json:
        record = {
            "text": "".join(pieces),
            "finish": delta.finish.value,
            "error": delta.error or None,
            "prompt_tokens": stream.prompt_tokens,
            "tokens": tokens,
            "first_token_s": round((first or ended) - began, 4),
            "seconds": round(ended - began, 4),
        }
        print(json.dumps(record, ensure_ascii=False))
    elif sys.stdout.isatty():
        print()  # a pipe gets the reply alone
    if delta.finish is Finish.FAILED:
        print(f"minichat: {delta.error}", file=sys.stderr)
        return 1
    if delta.finish is Finish.LENGTH and params.grammar:
        print(f"minichat: the reply was cut after {tokens} tokens and is not whole", file=sys.stderr)
        return 1
    return 0


def _replies(host, prompt, params, as_json: bool) -> int:  # type: ignore[no-untyped-def]
    """All at their end: they are told apart by number, or by their places in a list."""
    stream = host.submit(prompt, params)
    replies = stream.results()
    if as_json:
        records = [
            {
                "text": reply.text,
                "finish": reply.finish.value,
                "score": reply.score,
                "prompt_tokens": stream.prompt_tokens,
                "tokens": len(reply.tokens),
            }
            for reply in replies
        ]
        print(json.dumps(records, ensure_ascii=False))
        return 0
    for number, reply in enumerate(replies, 1):
        score = "" if reply.score is None else f" {reply.score:.3f}"
        print(f"[{number}]{score}\n{reply.text}" + "\n" * (number < len(replies)))
    return 0
