"""Which replies are let through where calls, a thought and a wanted form come together."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.grammar.source import lark_of
from engine.server.reply_grammar import Function, ToolCallRules, reply_grammar
from engine.server.tools import Style
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


def lets(grammar: Grammar | None, text: str) -> bool:
    """Whether a reply may be this text, and may end there."""
    assert grammar is not None
    guide = grammars()._compiled(grammar, 20).starting(0)
    guide.read(tokenizer().encode(text))
    return guide.may_end and not guide.error


def calls(
    style: Style = "qwen", *, must: bool = True, many: bool = True, strict: bool = True
) -> ToolCallRules:
    functions = [Function("weather", TOWN, strict), Function("noop", {}, strict)]
    return ToolCallRules(style, functions, must=must, many=many)


@pytest.mark.parametrize(
    ("text", "wanted", "thinking", "good", "bad"),
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
def test_what_is_let_through(
    text: Grammar | None, wanted: ToolCallRules | None, thinking: bool, good: list[str], bad: list[str]
) -> None:
    grammar = reply_grammar(text, wanted, thinking=thinking)
    assert [each for each in good if not lets(grammar, each)] == []
    assert [each for each in bad if lets(grammar, each)] == []


def test_a_reply_that_may_be_anything_has_no_grammar() -> None:
    assert reply_grammar(None, None, thinking=True) is None
    assert reply_grammar(None, calls(must=False, strict=False), thinking=True) is None
    assert reply_grammar(NUMBER, None, thinking=False) is NUMBER


@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from('ab/\\\n.[]"é'), min_size=1, max_size=12))
def test_any_text_can_be_a_choice_behind_a_thought(text: str) -> None:
    grammar = reply_grammar(Grammar("choice", json.dumps([text])), None, thinking=True)
    assert lets(grammar, "so</think>" + text)
    assert not lets(grammar, "so</think>" + text + "x")


@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from("ab/\\\n."), min_size=1, max_size=8), st.text("ab/\\\n", max_size=4))
def test_an_expression_is_the_same_as_part_of_another_grammar(expression: str, text: str) -> None:
    """Whatever slashes and escapes it has; what is none is refused either way."""
    try:
        grammars().check(plain := Grammar("regex", expression))
    except BadParams:
        return
    behind = reply_grammar(plain, None, thinking=True)
    assert lets(behind, "</think>" + text) == lets(plain, text)
    if re.fullmatch(r"[ab/\n]+", expression):
        assert lets(plain, expression)


def test_an_expression_that_ends_in_half_an_escape_is_refused() -> None:
    with pytest.raises(BadParams, match="lone backslash"):
        lark_of(Grammar("regex", "a\\"))
