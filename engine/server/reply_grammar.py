"""One Lark grammar for a reply that combines tool calls, a <think> section and a requested format."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.api.params import Grammar
from engine.grammar.source import lark_of, lark_of_schema
from engine.server.tools import CLOSE, OPEN, Style
from engine.text import reasoning

_OF_ANY = "(.|\\n)*"
_ARGUMENTS: dict[Style, str] = {"qwen": "arguments", "llama": "parameters"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function the model may call. Unless `strict`, unsupported parts of its schema are ignored."""

    name: str
    parameters: dict[str, Any]
    strict: bool


@dataclass(frozen=True, slots=True)
class ToolCallRules:
    """`must`: the reply consists of calls only. `many`: it may hold more than one call."""

    style: Style
    functions: Sequence[Function]
    must: bool
    many: bool

    @property
    def free(self) -> bool:
        """Whether no grammar is needed: calls are optional, unlimited and not strict."""
        return not self.must and self.many and not any(each.strict for each in self.functions)


def reply_grammar(text: Grammar | None, calls: ToolCallRules | None, *, thinking: bool) -> Grammar | None:
    """Return the grammar of the whole reply, or None if any text is valid.

    `thinking`: the reply starts inside a <think> section.
    """
    if calls is None or (calls.free and text is None):
        if text is None or not thinking:
            return text
        rules = [f"body: {lark_of(text)}"]
    else:
        rules = list(_CALLS[calls.style](calls))
        if text is not None and not calls.must:
            rules += [f"text: {lark_of(text)}", "body: calls | text"]
        else:
            rules += ["body: calls" if calls.must else "body: free"]
    if thinking:
        rules += [f"thought[lazy]: /{_OF_ANY}{_regex(reasoning.CLOSE)}/", "start: thought /\\n{0,4}/ body"]
    else:
        rules += ["start: body"]
    return Grammar("lark", "\n".join(["%llguidance {}", *rules]))


def _tagged(calls: ToolCallRules) -> list[str]:
    """Return the rules for Qwen's tagged calls. In free text a call starts only at its tag."""
    return [
        *_functions(calls),
        f"rest: {_text(chr(10))} function {_text(chr(10) + CLOSE)}",
        f"call: {_text(OPEN)} rest",
        f"calls: call ({_text(chr(10))} call)*" if calls.many else "calls: call",
        f"opened[lazy]: ANY {_text(OPEN)}",
        f"ANY: /{_OF_ANY}/",
        "free: (opened rest)* ANY" if calls.many else "free: ANY | opened rest",
    ]


def _bare(calls: ToolCallRules) -> list[str]:
    """Return the rules for Llama's bare JSON calls. Text is anything that does not start with a brace."""
    return [
        *_functions(calls),
        f"calls: function ({_text('; ')} function)*" if calls.many else "calls: function",
        f"WORDS: /\\s*[^{{\\s]{_OF_ANY}/",
        "free: calls | WORDS?",
    ]


_CALLS = {"qwen": _tagged, "llama": _bare}


def _functions(calls: ToolCallRules) -> list[str]:
    rules = []
    for n, each in enumerate(calls.functions):
        head = f'{{"name": {json.dumps(each.name)}, "{_ARGUMENTS[calls.style]}": '
        schema = lark_of_schema({"type": "object", **each.parameters}, lenient=not each.strict)
        rules.append(f"function_{n}: {_text(head)} {schema} {_text('}')}")
    return [*rules, "function: " + " | ".join(f"function_{n}" for n in range(len(calls.functions)))]


def _text(literal: str) -> str:
    return json.dumps(literal)


def _regex(literal: str) -> str:
    return literal.replace("/", "\\/")
