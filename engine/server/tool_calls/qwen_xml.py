"""Qwen3-Coder: `<tool_call>`, `<function=name>`, and `<parameter=key>` before each argument, a line each.

A string is written as it is, any other value as JSON or as Python writes it. The function's schema tells
which. Some replies leave out `<tool_call>`.
"""

import re
from collections.abc import Mapping
from typing import Any

from engine.server.tool_calls.by_schema import argument
from engine.server.tool_calls.json_text import as_json
from engine.server.tool_calls.reading import Delimiters, ReplyReading, Steps
from engine.server.tool_calls.rules import CallSyntax, by_argument, is_text, json_of, quoted, raw_text

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_STARTS, _PARAMETER_END = Delimiters(OPEN, FUNCTION), Delimiters(f"\n{PARAMETER_END}", PARAMETER_END)
_NAME = re.compile(r"[^<>\n]+")
_PYTHON = {"True": True, "False": False, "None": None}


def read(reading: ReplyReading) -> Steps[None]:
    while mark := (yield from reading.prose(_STARTS)):
        if not (mark == FUNCTION or (yield from reading.token(FUNCTION))) or not (yield from _call(reading)):
            reading.reject()
            continue
        reading.attempt()
        if (yield from reading.token(CLOSE)):
            reading.attempt()  # it is not text
        else:
            reading.reject()


def _call(reading: ReplyReading) -> Steps[bool]:
    """Read a call after `<function=`. Returns whether it is one."""
    name = (yield from reading.run(_NAME)).strip()
    closed = yield from reading.take(">")
    if not name or not reading.knows(name) or not (closed or reading.was_cut):
        return False
    reading.begin_call(name)
    start = "{"
    properties = reading.functions.get(name, {}).get("properties") or {}
    while (yield from reading.token(PARAMETER)) and (yield from _argument(reading, start, properties)):
        start = ", "
    if (yield from reading.token(FUNCTION_END)) or not reading.was_cut:
        reading.argue("{}" if start == "{" else "}")
    reading.end_call()
    return True


def _argument(reading: ReplyReading, start: str, properties: Mapping[str, Any]) -> Steps[bool]:
    """Read an argument after `<parameter=`. Returns whether it is complete."""
    key = (yield from reading.run(_NAME)).strip()
    if not (yield from reading.take(">")):
        return False
    yield from reading.take("\n")
    return (yield from argument(reading, start, key, properties.get(key), _PARAMETER_END, _decoded))


def _decoded(text: str) -> Any:
    word = text.strip()
    return _PYTHON[word] if word in _PYTHON else as_json(word)


def _argument_rule(name: str, schema: Mapping[str, Any], strict: bool) -> str:
    head = quoted(f"{PARAMETER}{name}>\n")
    if is_text(schema):
        return f"{head} {raw_text(schema, PARAMETER_END, strict, before=chr(10))} {quoted(chr(10))}"
    return f"{head} {json_of(schema, strict)} {quoted(f'{chr(10)}{PARAMETER_END}{chr(10)}')}"


SYNTAX = CallSyntax(
    open=f"{OPEN}\n",
    function=by_argument(f"{FUNCTION}{{}}>\n", f"{FUNCTION_END}\n", _argument_rule),
    close=CLOSE,
    again="\n",
)
