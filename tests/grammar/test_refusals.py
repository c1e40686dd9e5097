"""A bad grammar is refused with the reason, and in time."""

import json
import threading
from typing import Any

import pytest

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.grammar import grammars as module
from engine.grammar.grammars import Grammars
from engine.grammar.source import MAX_CHOICES, MAX_NESTING
from tests.grammar.walks import EOS, VOCAB, grammars, tokenizer


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    while depth > 1:
        schema = {"anyOf": [schema]} if depth % 2 else {"items": schema, "type": "array"}
        depth -= 2 if "anyOf" in schema else 1
    return schema


def _doubled(times: int) -> str:
    """A grammar of a single word of 2 ** times letters."""
    return "\n".join(["start: A0", *(f"A{n}: A{n + 1} A{n + 1}" for n in range(times)), f"A{times}: /x/"])


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json", "{", "is not a JSON schema: Expecting"),
        ("json", "[1]", "grammar: must be an object"),
        ("json", "false", "allows no value"),
        ("json", '{"type": "foo"}', "Invalid type: foo"),
        ("json", '{"not": {}}', 'Unimplemented keys: \\["not"\\]'),
        ("json", '{"x-guidance": {"lenient": true}, "not": {}}', "Unimplemented keys"),
        ("json", '{"type": "integer", "minimum": 5, "maximum": 3}', "Unsatisfiable"),
        ("json", '{"$ref": "https://example.org/a.json"}', "example.org"),
        ("json", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "no text matches it"),
        ("json", '{"oneOf": [{"type": "string"}, {"maxLength": 2}]}', "oneOf constraints are not supported$"),
        ("json", '{"type": "string", "pattern": "(?=a)b"}', "look-ahead"),
        ("json", json.dumps(nested(MAX_NESTING + 2)), f"at most {MAX_NESTING} levels deep"),
        ("json", '{"a":' * 5000 + "1" + "}" * 5000, "deep"),
        ("json", '{"minimum": 9007199254740993}', "minimum is 9007199254740993, which cannot be represented"),
        (
            "json",
            '{"minimum": 10000000000000000000, "maximum": 10000000000000000009}',
            "cannot be represented",
        ),
        ("json", '{"anyOf": [{"enum": ["a", [9223372036854775808]]}]}', "enum is 9223372036854775808"),
        ("regex", "", "is empty"),
        ("regex", "(", "invalid regex: unclosed group$"),
        ("regex", "(a)\\1", "backreferences are not supported$"),
        ("regex", "[^\\s\\S]", "no text matches it"),
        ("regex", "(" * 3000 + "a" + ")" * 3000, "invalid regex: "),
        ("regex", "(|)", "only the empty text matches it"),
        ("regex", "a\\", "ends in a lone backslash"),
        ("json", '{"const": "\\ud800"}', "is not a usable JSON schema: unexpected end of hex escape"),
        ("lark", "start: (", "invalid Lark grammar: "),
        ("lark", "begin: /a/", "invalid Lark grammar: "),
        ("lark", _doubled(40), "invalid Lark grammar: "),
        ("choice", "[]", "1 to"),
        ("choice", '["a", ""]', "non-empty"),
        ("choice", '["a", 5]', "must be a non-empty string, not 5"),
        ("choice", "a, b", "is not a JSON list of choices"),
        ("choice", json.dumps(["a"] * (MAX_CHOICES + 1)), "1 to"),
    ],
)
def test_the_error_gives_the_reason(kind: Any, text: str, words: str) -> None:
    for _ in range(2):  # and the failure is not cached as a success
        with pytest.raises(BadParams, match=words) as caught:
            grammars().check(Grammar(kind, text))
        assert caught.value.field == "grammar"
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 2**60},
        {"enum": [True, 2**53, -(2**53), 0.1, 1e300]},
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    ],
)
def test_large_numbers_that_a_float_represents_are_accepted(schema: Any) -> None:
    grammars().check(Grammar("json", json.dumps(schema)))


def test_nesting_is_counted_from_the_outside() -> None:
    grammars().check(Grammar("json", json.dumps(nested(MAX_NESTING))))


def test_a_grammar_that_compiles_too_slowly_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, hold, real = Grammar("regex", "slow"), threading.Event(), module.source

    def source(grammar: Grammar) -> str:
        if grammar == slow:
            assert hold.wait(60)
        return real(grammar)

    monkeypatch.setattr(module, "source", source)
    fresh = Grammars(tokenizer(), VOCAB, frozenset({EOS}))
    with pytest.raises(BadParams, match=r"takes longer than 0\.01 s"):
        fresh.check(slow, seconds=0.01)
    fresh.check(Grammar("regex", "quick"))
    hold.set()
    fresh.check(slow)  # its compilation was not started again


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Grammar] = []
    real = module.source
    monkeypatch.setattr(module, "source", lambda grammar: seen.append(grammar) or real(grammar))
    fresh, grammar = Grammars(tokenizer(), VOCAB, frozenset({EOS})), Grammar("regex", "once")
    for _ in range(3):
        fresh.check(grammar)
    assert seen == [grammar]
    monkeypatch.setattr(module, "KEPT", 2)
    for letter in "abc":
        fresh.check(Grammar("regex", letter))
    fresh.check(grammar)
    assert seen.count(grammar) == 2, "the least recently used grammar was not evicted"
