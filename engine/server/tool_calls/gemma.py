"""FunctionGemma: `<start_function_call>call:name{key:<escape>text<escape>,other:5}<end_function_call>`.

Gemma 4 writes the same with other words: `<|tool_call>call:name{key:<|"|>text<|"|>,other:5}<tool_call|>`. Its
thoughts are between `<|channel>thought` and `<channel|>`, also without tools.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from engine.server.tool_calls.json_text import as_json, escaped
from engine.server.tool_calls.reading import Delimiters, ReplyReading, Steps, enclosed, ignore
from engine.server.tool_calls.rules import CallSyntax, by_argument, is_text, json_of, quoted, raw_text

DEPTH = 64
THOUGHT, THOUGHT_END = "<|channel>", "<channel|>"
_SCALAR, _KEY = re.compile(r"[^,\]}<]+"), re.compile(r"[^:,{}\[\]<]+")


class GemmaCalls:
    """The calls of one of the two models."""

    def __init__(self, open: str, close: str, quote: str) -> None:
        self.open, self.quote = open, quote
        self._open, self._close, self._quote = Delimiters(open), Delimiters(close), Delimiters(quote)
        self._starts, self._thought_end = Delimiters(open, THOUGHT), Delimiters(THOUGHT_END)
        self.syntax = CallSyntax(
            open=open,
            function=by_argument("call:{}{{", "}", self._argument_rule, ","),
            close=close,
            again="",
        )

    def read(self, reading: ReplyReading) -> Steps[None]:
        yield from enclosed(reading, self._open, self._close, self._call)

    def read_with_thoughts(self, reading: ReplyReading) -> Steps[None]:
        while mark := (yield from reading.prose(self._starts)):
            if mark == THOUGHT:
                yield from self._thought(reading)
                continue
            reading.bound(self._close)
            called = yield from self._call(reading)
            reading.bound(None)
            if called:
                yield from reading.until(self._close, ignore)

    def _thought(self, reading: ReplyReading) -> Steps[None]:
        if not (yield from reading.take("thought")):
            reading.reject()
            return
        yield from reading.space()
        reading.attempt()
        reading.thinking = True
        yield from reading.until(self._thought_end, reading.think)
        reading.thinking = False

    def _call(self, reading: ReplyReading) -> Steps[bool]:
        name = (yield from reading.word()) if (yield from reading.token("call:")) else ""
        begins = (yield from reading.peek()) == "{"
        if not name or not (begins or reading.was_cut):
            reading.reject()
            return False
        reading.begin_call(name)
        if begins:
            yield from self._value(reading, DEPTH)
        reading.end_call()
        return True

    def _value(self, reading: ReplyReading, depth: int) -> Steps[bool]:
        """Read a value and add it to the arguments as JSON. Returns whether it is complete."""
        yield from reading.space()
        first = yield from reading.peek()
        if first in ("{", "[") and depth:
            reading.skip(1)
            reading.argue(first)
            return (yield from self._items(reading, first, depth - 1))
        if first == "<":
            return (yield from self._string(reading))
        text = (yield from reading.run(_SCALAR)).strip()
        if not text or not (yield from reading.peek()):
            return False
        reading.argue(json.dumps(as_json(text), ensure_ascii=False))
        return True

    def _string(self, reading: ReplyReading) -> Steps[bool]:
        if not (yield from reading.take(self.quote)):
            return False
        reading.argue('"')
        if not (yield from reading.until(self._quote, lambda text: reading.argue(escaped(text)))):
            return False
        reading.argue('"')
        return True

    def _items(self, reading: ReplyReading, kind: str, depth: int) -> Steps[bool]:
        """Read the inside of an object or of a list."""
        close = "}" if kind == "{" else "]"
        start = ""
        while not (yield from reading.token(close)):
            if start and not (yield from reading.token(",")):
                return False
            reading.argue(start)
            start = ", "
            if kind == "{" and not (yield from self._key(reading)):
                return False
            if not (yield from self._value(reading, depth)):
                return False
        reading.argue(close)
        return True

    def _key(self, reading: ReplyReading) -> Steps[bool]:
        yield from reading.space()
        if (yield from reading.peek()) == "<":
            if not (yield from self._string(reading)):
                return False
        else:
            name = (yield from reading.run(_KEY)).strip()
            if not name or (yield from reading.peek()) != ":":
                return False
            reading.argue(json.dumps(name, ensure_ascii=False))
        reading.argue(": ")
        return (yield from reading.token(":"))

    def _argument_rule(self, name: str, schema: Mapping[str, Any], strict: bool) -> str:
        return f"{quoted(f'{name}:')} {self._written(schema, strict)}"

    def _written(self, schema: Mapping[str, Any], strict: bool) -> str:
        """Return a rule's right side for a value, whose strings are all between quotes."""
        if is_text(schema):
            return f"{quoted(self.quote)} {raw_text(schema, self.quote, strict)}"
        match schema:
            case {"type": "array", **others} if not strict or others.keys() <= {"items", "description"}:
                item = self._written(schema.get("items") or {"type": "string"}, strict)
                return f'"[" ({item} ("," {item})*)? "]"'
            case {"type": "integer" | "number" | "boolean" | "null"}:
                return json_of(schema, strict)
            case {"enum": [*choices]}:
                return f"({' | '.join(self._literal(choice) for choice in choices)})"
            case {"type": "object", "properties": dict(properties)}:
                members = [
                    f"{quoted(f'{name}:')} {self._written(each, strict)}" for name, each in properties.items()
                ]
                return ' "," '.join(['"{"' + (f" {members[0]}" if members else ""), *members[1:]]) + ' "}"'
        return f"{quoted(self.quote)} {raw_text({}, self.quote, strict)}"

    def _literal(self, value: Any) -> str:
        return quoted(f"{self.quote}{value}{self.quote}" if isinstance(value, str) else json.dumps(value))


FUNCTION_GEMMA = GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>')
