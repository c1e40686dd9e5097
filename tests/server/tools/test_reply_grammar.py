"""The grammar of a reply that combines tool calls, reasoning and a requested format."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.grammar.source import lark_of
from engine.server.reply_grammar import ToolCallRules, reply_grammar
from engine.server.tool_calls.formats import Style
from engine.server.tool_calls.rules import Function
from tests.grammar.walks import grammars, tokenizer

TOWN: dict[str, Any] = {
    "properties": {"town": {"type": "string"}},
    "required": ["town"],
    "additionalProperties": False,
}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"town": "K/ö"}}\n</tool_call>'
ODD = ONE.replace('"K/ö"', "5")
OTHER = '<tool_call>\n{"name": "noop", "arguments": {"a": [1]}}\n</tool_call>'
BARE = '{"name": "weather", "parameters": {"town": "K"}}'
THOUGHT = "Hm, <tool_call> or not?\n</think>\n\n"
NUMBER, SLASHES = Grammar("json", '{"type": "integer"}'), Grammar("regex", "[0-9/]{2,5}")


def accepts(grammar: Grammar | None, text: str) -> bool:
    """Return whether this text is a complete reply under the grammar."""
    assert grammar is not None
    guide = grammars().compiled(grammar).starting(0)
    guide.read(tokenizer().encode(text))
    return guide.may_end and not guide.error


def calls(
    style: Style = "qwen", *, must: bool = True, many: bool = True, strict: bool = True
) -> ToolCallRules:
    functions = [Function("weather", TOWN, strict), Function("noop", {}, strict)]
    return ToolCallRules(style, functions, must=must, many=many)


@pytest.mark.parametrize(
    ("text", "expected", "thinking", "good", "bad"),
    [
        (None, calls(), False, [ONE, f"{ONE}\n{OTHER}"], [ODD, f"Hi {ONE}", f"{ONE} so", ""]),
        (None, calls(many=False), False, [ONE, OTHER], [f"{ONE}\n{ONE}"]),
        (None, calls(), True, [THOUGHT + ONE], [ONE, THOUGHT + ODD, THOUGHT]),
        (
            None,
            calls(must=False),
            False,
            ["", "a < b <tool", f"Hi {ONE}", f"{ONE}\n{OTHER} so"],
            [f"Hi {ODD}", "<tool_call>"],
        ),
        (None, calls(must=False, many=False), False, ["", "a < b", f"Hi {ONE}"], [ONE + ONE, f"{ONE} so"]),
        (NUMBER, calls(must=False), False, ["12", ONE], ["x", f"12{ONE}", ODD]),
        (NUMBER, calls(must=False), True, [f"{THOUGHT}12", THOUGHT + ONE], ["12", f"{THOUGHT}x"]),
        (SLASHES, None, True, [f"{THOUGHT}1/2"], ["1/2", f"{THOUGHT}a"]),
        (Grammar("choice", '["a/b", "c\\n"]'), None, True, [f"{THOUGHT}a/b", f"{THOUGHT}c\n"], ["a/b"]),
        (NUMBER, calls(), False, [ONE], ["12"]),
        (None, calls("llama"), False, [BARE, f"{BARE}; {BARE}"], [f"Hi {BARE}", "", BARE.replace("K", '"')]),
        (None, calls("llama", must=False), False, ["", "Hi {", "\n Hi", BARE], ['{"x": 1}', f" {BARE} so"]),
    ],
)
def test_accepted_replies(
    text: Grammar | None, expected: ToolCallRules | None, thinking: bool, good: list[str], bad: list[str]
) -> None:
    grammar = reply_grammar(text, expected, thinking=thinking)
    assert [each for each in good if not accepts(grammar, each)] == []
    assert [each for each in bad if accepts(grammar, each)] == []


def test_an_unconstrained_reply_has_no_grammar() -> None:
    assert reply_grammar(None, None, thinking=True) is None
    assert reply_grammar(None, calls(must=False, strict=False), thinking=True) is None
    assert reply_grammar(NUMBER, None, thinking=False) is NUMBER


@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from('ab/\\\n.[]"é'), min_size=1, max_size=12))
def test_any_text_can_be_a_choice_after_reasoning(text: str) -> None:
    grammar = reply_grammar(Grammar("choice", json.dumps([text])), None, thinking=True)
    assert accepts(grammar, "so</think>" + text)
    assert not accepts(grammar, "so</think>" + text + "x")


@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from("ab/\\\n."), min_size=1, max_size=8), st.text("ab/\\\n", max_size=4))
def test_a_regex_means_the_same_inside_another_grammar(expression: str, text: str) -> None:
    """Also with slashes and escapes. An invalid regex is refused either way."""
    try:
        grammars().check(plain := Grammar("regex", expression))
    except BadParams:
        return
    combined = reply_grammar(plain, None, thinking=True)
    assert accepts(combined, "</think>" + text) == accepts(plain, text)
    if re.fullmatch(r"[ab/\n]+", expression):
        assert accepts(plain, expression)


def test_a_regex_that_ends_in_a_backslash_is_refused() -> None:
    with pytest.raises(BadParams, match="lone backslash"):
        lark_of(Grammar("regex", "a\\"))
