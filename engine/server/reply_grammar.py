"""One Lark grammar for a reply that combines tool calls, a <think> section and a requested format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.grammar.source import BAD_LARK, BAD_SCHEMA, lark_of
from engine.server.tool_calls.formats import FORMATS, Style
from engine.server.tool_calls.rules import ANYTHING, Function, bad_schema, block_rules
from engine.text import reasoning


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
        rules = block_rules(FORMATS[calls.style].syntax, calls.functions, many=calls.many)
        if text is not None and not calls.must:
            rules += [f"text: {lark_of(text)}", "body: calls | text"]
        else:
            rules += ["body: calls" if calls.must else "body: free"]
    if thinking:
        rules += [f"thought[lazy]: /{ANYTHING}{_regex(reasoning.CLOSE)}/", "start: thought /\\n{0,4}/ body"]
    else:
        rules += ["start: body"]
    return Grammar("lark", "\n".join(["%llguidance {}", *rules]))


def blamed(error: BadParams, grammar: Grammar | None, calls: ToolCallRules | None) -> BadParams:
    """Return the error for a reply's grammar, under the field that it comes from. Clients do not write the
    rules of calls, so an error in a line with those of a function names that one.
    """
    if error.field != "grammar" or grammar is None or calls is None:
        return error
    rules, problem = grammar.text.split("\n"), error.problem
    line = error.value if isinstance(error.value, int) else 0
    if found := re.match(r"function_(\d+)", rules[line - 1]):
        return bad_schema(calls.functions[int(found[1])], problem.removeprefix(f"{BAD_SCHEMA}: "))
    if any(rule.startswith("text: ") for rule in rules):
        return error
    return BadParams("tools", problem.removeprefix(f"{BAD_LARK}: "))


def _regex(literal: str) -> str:
    return literal.replace("/", "\\/")
