"""A grammar as llguidance reads it; whatever cannot be a grammar is refused here, with the reason."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher

from engine.api.errors import BadParams
from engine.api.params import Grammar

_UNUSABLE = {
    "json": "is not a usable JSON schema",
    "regex": "invalid regex",
    "choice": "invalid choices",
    "lark": "invalid Lark grammar",
}
MAX_NESTING = 64
MAX_CHOICES = 4096
MOST = 2**63 - 1  # llguidance counts so far, and takes every number on the way for a float

# Nothing that a schema demands is passed over, and a model that only loves blanks has to go on at last.
_JSON: Any = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,32}"}


def unusable(grammar: Grammar, why: str) -> BadParams:
    return BadParams("grammar", f"{_UNUSABLE[grammar.kind]}: {why}")


def source(grammar: Grammar) -> str:
    try:
        return _source(grammar)
    except ValueError as error:  # of a number or a letter that JSON has, and llguidance has not
        raise unusable(grammar, str(error)) from None


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(_schema(grammar.text), overrides=_JSON)
        case "regex":
            return LLMatcher.grammar_from_regex(_regex(grammar.text))
        case "choice":
            return LLMatcher.grammar_from_regex(_any_of(grammar.text))
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)


def lark_of(grammar: Grammar) -> str:
    """The same as a part of a rule in Lark."""
    match grammar.kind:
        case "json":
            return lark_of_schema(json.loads(_schema(grammar.text)))
        case "regex":
            return _lark_regex(_regex(grammar.text))
        case "choice":
            return _lark_regex(_any_of(grammar.text))
    raise BadParams("grammar", "in Lark has a start of its own, and can be no part of another one")


def lark_of_schema(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """`lenient`: what cannot be used is passed over."""
    return "%json " + json.dumps({**schema, "x-guidance": {**_JSON, "lenient": lenient}})


def _lark_regex(expression: str) -> str:
    """Between slashes, where none may stand bare, and no line may end."""
    bare = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", expression, flags=re.DOTALL)
    return f"/{bare.replace(chr(10), chr(92) + 'n')}/"


def _any_of(text: str) -> str:
    return "|".join(map(_literally, _choices(text)))


def _schema(text: str) -> str:
    schema = _parsed(text, "a JSON schema")
    if not isinstance(schema, dict | bool):
        raise BadParams("grammar", f"a JSON schema is an object, true or false, not {text:.60}")
    if schema is False:
        raise BadParams("grammar", "the JSON schema false admits nothing")
    for key, number in _whole_numbers(schema):
        above = number >= MOST and key in ("maximum", "exclusiveMaximum")  # none so large is written anyway
        if not above and not _exact(number):
            why = f"{key:.40} holds {number!s:.40}, which would be rounded"
            raise BadParams("grammar", f"{_UNUSABLE['json']}: {why}")
    return text if isinstance(schema, dict) else "{}"


def _regex(text: str) -> str:
    if not text:
        raise BadParams("grammar", "the regular expression is empty")
    if re.fullmatch(r"(?:\\.|[^\\])*", text, re.DOTALL) is None:  # llguidance would take it for a slash
        raise BadParams("grammar", "the regular expression ends in a lone backslash")
    return text


def _choices(text: str) -> list[str]:
    choices = _parsed(text, "a JSON list of choices")
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        raise BadParams("grammar", f"choices are a list of 1 to {MAX_CHOICES} texts, not {text:.60}")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise BadParams("grammar", f"a choice is a text that is not empty, not {choice!r:.60}")
    return choices


def _literally(text: str) -> str:
    """As a regular expression that means the text itself."""
    return "".join(each if each.isalnum() else rf"\x{{{ord(each):x}}}" for each in text)


def _parsed(text: str, what: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadParams("grammar", f"is not {what}: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    if any(depth > MAX_NESTING for depth in _depths(value)):
        raise _too_deep()
    return value


def _whole_numbers(value: Any, key: str = "the schema") -> Iterator[tuple[str, int]]:
    """Those of a JSON value, each with the key that it stands behind."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _whole_numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _whole_numbers(inner, key)
    elif isinstance(value, int):
        yield key, value


def _exact(number: int) -> bool:
    return abs(number) <= MOST and min(int(float(number)), MOST) == number


def _too_deep() -> BadParams:
    return BadParams("grammar", f"is nested more than {MAX_NESTING} deep; make it flatter, or use $defs")


def _depths(value: Any) -> Iterator[int]:
    """How deep each object and list of a JSON value lies."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        yield depth
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
