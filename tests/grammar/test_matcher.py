"""The allowed next tokens, against oracles that do not use grammars."""

import json
import random
import re

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.grammar.source import lark_of
from tests.grammar.walks import EOS, PROMPT, allowed, grammars, request, text_of, tokenizer, walk
from tests.runner.letters import VOCAB

texts = st.text(st.sampled_from("abthe.*+?()[]{}|\\^$/#é€ \n"), min_size=1, max_size=6)
seeds = st.integers(0, 2**32)


@settings(max_examples=60, deadline=None)
@given(choices=st.lists(texts, min_size=1, max_size=5), seed=seeds)
def test_a_choice_allows_exactly_the_continuations_of_its_options(choices: list[str], seed: int) -> None:
    asked, draw = request(Grammar("choice", json.dumps(choices))), random.Random(seed)
    pieces = {
        token: tokenizer().piece(token) for token in range(VOCAB) if token not in tokenizer().special_ids
    }
    while True:
        written = b"".join(pieces[token] for token in asked.tokens[len(PROMPT) :])
        rest = [choice.encode()[len(written) :] for choice in choices if choice.encode().startswith(written)]
        fit = {t for t, piece in pieces.items() if piece and any(each.startswith(piece) for each in rest)}
        if not fit:
            assert rest and asked.guide.over
            return
        assert allowed(asked) == fit | ({EOS} if b"" in rest else set())
        assert not asked.guide.over
        asked.tokens.append(draw.choice(sorted(fit)))
        asked.guide.read(asked.tokens)


EXPRESSIONS = [
    r"[0-9]{3}-[A-F]+",
    "(ab|the)*c?x",
    r"[^\n]{2,5}\.",
    "^th.{0,3}$",
    r"é+|€\u00e9",
    r"[^ ] [a-z_]{4}",
]


@settings(max_examples=60, deadline=None)
@given(expression=st.sampled_from(EXPRESSIONS), seed=seeds)
def test_a_walk_matches_the_whole_regex(expression: str, seed: int) -> None:
    text, ended = walk(Grammar("regex", expression), random.Random(seed))
    assert ended
    assert re.fullmatch(expression, text), text


# Schemas

names = st.text(st.sampled_from('abthe"\\é '), min_size=1, max_size=4)
numbers = st.integers(-20, 20)
leaves = st.one_of(
    st.sampled_from(
        [{}, {"type": "null"}, {"type": "boolean"}, {"type": "number"}, {"type": ["string", "null"]}]
    ),
    st.builds(lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": max(a, b)}, numbers, numbers),
    st.builds(
        lambda a, n: {"type": "string", "minLength": a, "maxLength": a + n},
        st.integers(0, 3),
        numbers.map(abs),
    ),
    st.sampled_from([{"type": "string", "pattern": "^[a-f]{2,4}$"}, {"type": "string", "format": "date"}]),
    st.builds(
        lambda values: {"enum": values}, st.lists(numbers | names | st.none() | st.booleans(), min_size=1)
    ),
    st.builds(lambda value: {"const": value}, st.lists(names, max_size=2)),
    st.just({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}),
)


def _object(properties: dict, required: list[bool], more: bool) -> dict:
    needed = [name for name, need in zip(properties, required, strict=False) if need]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": more}


def _bigger(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        st.builds(
            _object,
            st.dictionaries(names, inner, max_size=3),
            st.lists(st.booleans(), max_size=3),
            st.booleans(),
        ),
        st.builds(
            lambda items, a, n: {"type": "array", "items": items, "minItems": a, "maxItems": a + n},
            inner,
            st.integers(0, 2),
            st.integers(0, 3),
        ),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
    )


TREE = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "leaf": {"type": "integer"},
                "twigs": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
            "required": ["leaf", "twigs"],
        }
    },
    "$ref": "#/$defs/tree",
}
schemas = st.recursive(leaves, _bigger, max_leaves=8) | st.just(TREE)


def test_a_walk_is_json_that_matches_its_schema() -> None:
    ends = []

    @settings(max_examples=150, deadline=None)
    @given(schema=schemas, seed=seeds)
    def check(schema: dict, seed: int) -> None:
        grammar = Grammar("json", json.dumps(schema))
        try:
            grammars().check(grammar)
        except BadParams as error:
            assume("nsatisfiable" not in str(error))
            raise
        text, ended = walk(grammar, random.Random(seed))
        ends.append(ended)
        if ended:
            assert jsonschema_rs.is_valid(schema, json.loads(text)), (schema, text)

    check()
    assert sum(ends) > 0.7 * len(ends), "too few walks ended"


@settings(max_examples=30, deadline=None)
@given(schema=schemas, seed=seeds, cuts=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_a_guide_that_reads_tokens_later_allows_the_same(schema: dict, seed: int, cuts: list[int]) -> None:
    grammar, draw = Grammar("json", json.dumps(schema)), random.Random(seed)
    one, other, until = request(grammar), request(grammar), iter(cuts)
    stop = next(until)
    while tokens := sorted(allowed(one) - {EOS}):
        if len(one.tokens) - len(PROMPT) == stop:
            other.tokens[:] = one.tokens
            assert allowed(other) == allowed(one)
            assert allowed(request(grammar, one.tokens[len(PROMPT) :])) == allowed(one)
            if (more := next(until, None)) is None:
                return
            stop += more
        one.tokens.append(draw.choice(tokens))


def test_whitespace_is_limited() -> None:
    asked = request(Grammar("json", '{"type": "object"}', any_whitespace=True), tokenizer().encode("{"))
    [blank] = tokenizer().encode("\n")
    for _ in range(33):
        if blank not in allowed(asked):
            break
        asked.tokens.append(blank)
    assert blank not in allowed(asked)
    assert set(tokenizer().encode('}"')) == allowed(asked) & set(range(VOCAB))


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize(
    ("text", "compact"),
    [
        ('{"a":[1,{"b":[]}],"c":"x y"}', True),
        ('{"a": [1, {"b": []}], "c": "x y"}', True),
        ('{ "a": 1}', False),
        ('{"a":  1}', False),
        ('{"a" : 1}', False),
        ('{"a": [ 1]}', False),
        ('{"a": [1,\n1]}', False),
        ('{"a": 1\n}', False),
    ],
)
def test_json_is_compact_unless_any_white_space_is_allowed(text: str, compact: bool, embedded: bool) -> None:
    for loose in (False, True):
        grammar = Grammar("json", '{"type": "object"}', any_whitespace=loose)
        if embedded:
            grammar = Grammar("lark", f"start: {lark_of(grammar)}")
        asked = request(grammar, tokenizer().encode(text))
        assert (EOS in allowed(asked)) == (compact or loose), grammar


GBNF = r"""# a sum, as llama.cpp writes it
root ::= term ("+" term)* end?
term ::= [1-9] [0-9]{0,2} | "(" root ")"
end  ::= "\n" | [^a-z0-9+()"\\]
"""


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("1", True),
        ("12+(3+400)", True),
        ("7\n", True),
        ("7!", True),
        ("01", False),
        ("1+", False),
        ("1000", False),
    ],
)
def test_a_grammar_may_be_gbnf(text: str, good: bool) -> None:
    asked = request(Grammar("lark", GBNF))
    for token in tokenizer().encode(text):
        if token not in allowed(asked):
            assert not good
            return
        asked.tokens.append(token)
    assert (EOS in allowed(asked)) == good


def test_end_tokens_are_allowed_after_a_complete_and_long_enough_text() -> None:
    [a, b] = tokenizer().encode("ab")
    grammar = Grammar("regex", "a{1,9}b?")
    assert EOS not in allowed(request(grammar))
    assert EOS in allowed(request(grammar, [a]))
    assert EOS not in allowed(request(grammar, [a], min_tokens=2))
    assert EOS in allowed(request(grammar, [a, a], min_tokens=2))
    assert EOS not in allowed(request(grammar, [a], ignore_eos=True))
    assert b not in allowed(request(grammar, [], stop_ids=[b]))
    assert b in allowed(request(grammar, [a], stop_ids=[b]))


def test_special_tokens_are_never_text() -> None:
    asked = request(Grammar("regex", "(.|\n)*"))
    assert allowed(asked) & tokenizer().special_ids == {EOS}
    assert text_of(asked) == ""


def test_a_grammar_over_its_limits_is_the_reported_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the grammar's size, not the tokens so far."""
    monkeypatch.setattr("engine.grammar.grammars.SECONDS", 60.0)  # on a busy machine it takes longer
    asked = request(Grammar("regex", "a{1000000000}"))
    for _ in range(3):
        if tokens := allowed(asked):
            asked.tokens.append(min(tokens))
            asked.guide.read(asked.tokens)
    assert asked.guide.error.startswith("the grammar became too complex: ")
    other = request(Grammar("regex", "b+"))
    allowed(other)
    other.guide.read([*other.tokens, *asked.tokens[len(PROMPT) :][:1]])
    assert other.guide.error == "the reply does not match the grammar"
