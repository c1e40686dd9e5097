"""GLM-4.5: `<tool_call>name`, then `<arg_key>` and `<arg_value>` for each argument, then `</tool_call>`.

A string is written as it is, any other value as JSON. The function's schema tells which.
"""

from collections.abc import Mapping
from typing import Any

from engine.server.tool_calls.by_schema import argument
from engine.server.tool_calls.json_text import as_json
from engine.server.tool_calls.reading import Delimiters, ReplyReading, Steps, enclosed
from engine.server.tool_calls.rules import CallSyntax, by_argument, is_text, json_of, quoted, raw_text

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
_OPEN, _CLOSE, _KEY_END, _VALUE_END = (
    Delimiters(OPEN),
    Delimiters(CLOSE),
    Delimiters(KEY_END),
    Delimiters(VALUE_END),
)


def read(reading: ReplyReading) -> Steps[None]:
    yield from enclosed(reading, _OPEN, _CLOSE, _call)


def _call(reading: ReplyReading) -> Steps[bool]:
    yield from reading.space()
    name = yield from reading.word()
    keyed = yield from reading.token(KEY)
    if not name or not reading.knows(name) or not (keyed or (yield from reading.peek()) == ""):
        reading.reject()
        return False
    reading.begin_call(name)
    start = "{"
    properties = reading.functions.get(name, {}).get("properties") or {}
    while keyed and (yield from _argument(reading, start, properties)):
        start = ", "
        keyed = yield from reading.token(KEY)
    if not keyed and not (yield from reading.peek()) and not reading.was_cut:
        reading.argue("{}" if start == "{" else "}")
    reading.end_call()
    return True


def _argument(reading: ReplyReading, start: str, properties: Mapping[str, Any]) -> Steps[bool]:
    """Read an argument after `<arg_key>`. Returns whether it is complete."""
    parts = list[str]()
    if not (yield from reading.until(_KEY_END, parts.append)) or not (yield from reading.token(VALUE)):
        return False
    key = "".join(parts).strip()
    return (yield from argument(reading, start, key, properties.get(key), _VALUE_END, as_json))


def _argument_rule(name: str, schema: Mapping[str, Any], strict: bool) -> str:
    head = quoted(f"{KEY}{name}{KEY_END}\n{VALUE}")
    if is_text(schema):
        return f"{head} {raw_text(schema, VALUE_END, strict)} {quoted(chr(10))}"
    return f"{head} {json_of(schema, strict)} {quoted(VALUE_END + chr(10))}"


SYNTAX = CallSyntax(open=OPEN, function=by_argument("{}\n", "", _argument_rule), close=CLOSE, again="\n")
