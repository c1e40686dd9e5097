"""Parsers for the tool calls in a reply.

The chat template shows how a model writes calls. Qwen and similar models put JSON between tags, after any
text; Llama 3.1 and later write only the JSON.
"""

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engine.text.reasoning import overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str  # JSON
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    def record(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


_NAMED = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
_KEY = re.compile(r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_BARE = re.compile(_NAMED.pattern + _KEY.pattern, re.DOTALL)  # without tags, other JSON may have a name

ParsedText = tuple[str, list[Call]]  # text of the reply, and its calls


class CallReader(Protocol):
    """Parses a reply incrementally."""

    def push(self, text: str) -> ParsedText: ...

    def flush(self, *, cut: bool = False) -> ParsedText:
        """End the reply. `cut`: by a limit, so that a call may be incomplete."""
        ...


class TaggedCalls:
    """Qwen: text, then one or more <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

    def __init__(self) -> None:
        self._held = ""
        self._called = False

    def push(self, text: str) -> ParsedText:
        self._held += text
        prose, calls = "", list[Call]()
        while True:
            before, opened, rest = self._held.partition(OPEN)
            if not opened:
                sure = len(before) - overlap(before, OPEN)
                # Blank lines before a call are part of the call.
                sure = len(before[:sure].rstrip())
                prose, self._held = prose + before[:sure], before[sure:]
                break
            inside, closed, after = rest.partition(CLOSE)
            if not closed:
                prose, self._held = prose + before.rstrip(), self._held[len(before.rstrip()) :]
                break
            call = read_call(inside)
            if call:
                calls.append(call)
                prose += before.rstrip()
            else:
                prose += before + OPEN + inside + CLOSE  # not a valid call: pass it on as text
            self._held = after
        self._called |= bool(calls)
        return prose, calls

    def flush(self, *, cut: bool = False) -> ParsedText:
        held, self._held = self._held, ""
        before, opened, inside = held.partition(OPEN)
        call = read_call(inside) if opened else None  # the reply ended before the closing tag
        if call or (opened and cut and (call := cut_call(inside))):
            return before.rstrip(), [call]
        return ("" if self._called and held.isspace() else held), []


class BareCalls:
    """Llama: the whole reply is {"name": ..., "parameters": {...}}, or several separated by semicolons."""

    def __init__(self) -> None:
        self._held = ""
        self._text = False  # the reply is text, not calls

    def push(self, text: str) -> ParsedText:
        self._held += text
        start = self._held.lstrip()
        if not self._text and (not start or start[0] == "{"):
            return "", []
        self._text = True
        text, self._held = self._held, ""
        return text, []

    def flush(self, *, cut: bool = False) -> ParsedText:
        held, self._held = self._held, ""
        calls, rest = list[Call](), held.strip()
        while rest:
            try:
                value, end = json.JSONDecoder().raw_decode(rest)
            except (ValueError, RecursionError):
                last = cut_call(rest) if cut and _BARE.match(rest) else None
                return ("", [*calls, last]) if last else (held, [])
            if not (call := as_call(value)):
                return held, []
            calls.append(call)
            rest = rest[end:].lstrip().removeprefix(";").lstrip()
        return ("", calls) if calls else (held, [])


Style = Literal["qwen", "llama"]
READERS: dict[Style, type[TaggedCalls] | type[BareCalls]] = {"qwen": TaggedCalls, "llama": BareCalls}


def style(templates: Mapping[str, str]) -> Style | None:
    """Return how this model writes calls, or None if its template takes no tools or uses another format."""
    source = templates.get("tool_use") or templates.get("default", "")
    if "tools" not in source or "<function=" in source:  # the latter: calls as XML
        return None
    if OPEN in source:
        return "qwen"
    return "llama" if '"parameters"' in source or "<|python_tag|>" in source else None


def read_call(text: str) -> Call | None:
    try:
        return as_call(json.loads(text))
    except (ValueError, RecursionError):
        return None


def cut_call(text: str) -> Call | None:
    """Return a call that a limit cut after its name, with the arguments as far as they were written."""
    if not (found := _NAMED.match(text)):
        return None
    begun = _KEY.match(text, found.end())
    arguments = text[begun.end() :] if begun else ""
    try:
        name = json.loads(found[1])
    except ValueError:
        return None
    try:
        given, _ = json.JSONDecoder().raw_decode(arguments)  # only what follows them may be missing
    except (ValueError, RecursionError):
        return Call(name, arguments)
    return Call(name, json.dumps(given, ensure_ascii=False))


def as_call(value: Any) -> Call | None:
    match value:
        case {"name": str(name), "arguments": dict(given)} | {"name": str(name), "parameters": dict(given)}:
            return Call(name, json.dumps(given, ensure_ascii=False))
    return None
