"""The formats of tool calls, and which of them a chat template shows."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.server.tool_calls import (
    deepseek,
    gemma,
    glm,
    harmony,
    hermes,
    llama,
    mistral,
    pythonic,
    qwen_xml,
)
from engine.server.tool_calls.reading import CallReader, Parser, ReplyReading
from engine.server.tool_calls.rules import CallSyntax, Function

Style = Literal[
    "harmony",
    "deepseek",
    "deepseek-v3.1",
    "mistral",
    "mistral-args",
    "glm",
    "function-gemma",
    "gemma-4",
    "qwen-xml",
    "qwen",
    "tool-code",
    "pythonic",
    "llama",
]


@dataclass(frozen=True, slots=True)
class CallFormat:
    shown_by: Callable[[str], bool]  # whether a template that takes tools shows this format
    parser: Parser
    syntax: CallSyntax
    short_ids: bool = False  # ids of nine letters and digits, as the template wants them
    always: bool = False  # replies without tools have this form, too


_PYTHONIC = re.compile(r"\[\w+\(\w+=")  # a template's example of a call

# The first format that a template shows is the model's.
FORMATS: dict[Style, CallFormat] = {
    "harmony": CallFormat(
        lambda source: harmony.CHANNEL in source and harmony.FUNCTIONS in source,
        harmony.read,
        harmony.SYNTAX,
        always=True,
    ),
    "deepseek": CallFormat(
        lambda source: deepseek.BEGIN in source and "```json" in source, deepseek.read, deepseek.SYNTAX
    ),
    "deepseek-v3.1": CallFormat(
        lambda source: deepseek.BEGIN in source, deepseek.read, deepseek.SHORT_SYNTAX
    ),
    "mistral-args": CallFormat(
        lambda source: mistral.OPEN in source and mistral.ARGS in source,
        mistral.read,
        mistral.NAMED_SYNTAX,
        short_ids=True,
    ),
    "mistral": CallFormat(
        lambda source: mistral.OPEN in source, mistral.read, mistral.LIST_SYNTAX, short_ids=True
    ),
    "glm": CallFormat(lambda source: glm.KEY in source, glm.read, glm.SYNTAX),
    "function-gemma": CallFormat(
        lambda source: gemma.FUNCTION_GEMMA.open in source,
        gemma.FUNCTION_GEMMA.read,
        gemma.FUNCTION_GEMMA.syntax,
    ),
    "gemma-4": CallFormat(
        lambda source: gemma.GEMMA_4.open in source,
        gemma.GEMMA_4.read_with_thoughts,
        gemma.GEMMA_4.syntax,
        always=True,
    ),
    "qwen-xml": CallFormat(
        lambda source: qwen_xml.FUNCTION in source and qwen_xml.PARAMETER in source,
        qwen_xml.read,
        qwen_xml.SYNTAX,
    ),
    "qwen": CallFormat(
        lambda source: hermes.OPEN in source and "<function=" not in source,  # the latter: calls as XML
        hermes.read,
        hermes.SYNTAX,
    ),
    "tool-code": CallFormat(
        lambda source: pythonic.FENCE in source, pythonic.read_fenced, pythonic.FENCED_SYNTAX
    ),
    "pythonic": CallFormat(
        lambda source: _PYTHONIC.search(source) is not None, pythonic.read, pythonic.SYNTAX
    ),
    "llama": CallFormat(
        lambda source: (
            ('"parameters"' in source or "<|python_tag|>" in source) and "<function=" not in source
        ),
        llama.read,
        llama.SYNTAX,
    ),
}


def style(templates: Mapping[str, str]) -> Style | None:
    """Return how this model writes calls, or None if its template takes no tools or uses another format."""
    source = templates.get("tool_use") or templates.get("default", "")
    if "tools" not in source:
        return None
    return next((name for name, each in FORMATS.items() if each.shown_by(source)), None)


def reader(style: Style, functions: Sequence[Function] = ()) -> CallReader:
    """Return a reader of one reply. `functions`: those that the request allows."""
    found = FORMATS[style]
    schemas = {each.name: each.parameters for each in functions}
    return CallReader(found.parser, ReplyReading(schemas, short_ids=found.short_ids))


def reply_reader(style: Style | None, functions: Sequence[Function] | None) -> CallReader | None:
    """Return a reader if this reply needs one. `functions`: None if it must not call any."""
    if style is None or (functions is None and not FORMATS[style].always):
        return None
    return reader(style, functions or ())
