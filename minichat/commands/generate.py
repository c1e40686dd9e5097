"""`minichat generate`: one reply on standard output, and nothing else there."""

import argparse
import json
import sys
import time

from engine.errors import BadInput, EngineError
from engine.request import Finish
from minichat.commands.options import engine_config, failed, running, sampling


def run(options: argparse.Namespace) -> int:
    try:
        params = sampling(options)
        text = _prompt(options)
        config = engine_config(options, max_running=8)
        with running(config) as host:
            raw = options.raw
            if not raw and not host.has_template:
                print(
                    f"minichat: {config.model} has no chat template; completing the text (--raw)",
                    file=sys.stderr,
                )
                raw = True
            return _reply(host, _messages(options, text) if not raw else text, params, options.json)
    except EngineError as error:
        return failed(error)


def _prompt(options: argparse.Namespace) -> str:
    if options.text is not None:
        return str(options.text)
    if sys.stdin is None or sys.stdin.isatty():
        if options.raw:
            return ""  # the start token alone
        raise BadInput("there is no text: give it as an argument or on standard input")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 text: {error}") from None


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
    return 0
