"""Grammars in llguidance's form. Invalid ones are rejected here, with the reason."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from engine.api.errors import BadParams
from engine.api.params import Grammar
from engine.grammar.matcher import reason

BAD_LARK, BAD_SCHEMA = "invalid Lark grammar", "is not a usable JSON schema"
_UNUSABLE = {
    "json": BAD_SCHEMA,
    "regex": "invalid regex",
    "choice": "invalid choices",
    "lark": BAD_LARK,
}
_IN_LARK = "failed to compile JSON schema: "  # of a schema in a rule
_GBNF = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)  # a rule of llama.cpp's form
MAX_NESTING = 64
MAX_CHOICES = 4096
MOST = 2**63 - 1  # llguidance's largest integer; it parses all numbers as floats

# No keyword of a schema is ignored. A weak model would spend its reply on white space, so there is none but a
# blank after a comma or a colon, as most models write JSON; any other is limited.
_JSON: Any = {"lenient": False, "coerce_one_of": False}
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_LOOSE: Any = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,32}"}


def unusable(grammar: Grammar, wrong: str) -> BadParams:
    """Return the error for what llguidance said. Its value: the bad line of a Lark grammar, if known."""
    why, line = reason(wrong), re.match(r"at (\d+)\(", wrong)
    of_schema = why.startswith(_IN_LARK)
    what = BAD_SCHEMA if of_schema else _UNUSABLE[grammar.kind]
    return BadParams("grammar", f"{what}: {why.removeprefix(_IN_LARK)}", int(line[1]) if line else None)


def source(grammar: Grammar) -> str:
    try:
        return _source(grammar)
    except ValueError as error:  # a number or a character that is valid JSON but not valid in llguidance
        raise unusable(grammar, str(error)) from None


def check(grammar: Grammar) -> None:
    """Raise BadParams if the grammar is invalid, before it meets a model."""
    if wrong := LLMatcher.validate_grammar(source(grammar)):
        raise unusable(grammar, wrong)


def matches(grammar: Grammar, text: str) -> bool:
    """Whether a whole text matches, in any model's tokens."""
    letters = LLTokenizer("byte")
    tokens = letters.tokenize_str(text)
    matcher = LLMatcher(letters, source(grammar), log_level=0)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case "json":
            options: Any = _options(any_whitespace=grammar.any_whitespace)
            return LLMatcher.grammar_from_json_schema(_schema(grammar.text), overrides=options)
        case "regex":
            return LLMatcher.grammar_from_regex(_regex(grammar.text))
        case "choice":
            return LLMatcher.grammar_from_regex(_any_of(grammar.text))
        case "lark":
            text = _lark_of_gbnf(grammar.text) if _GBNF.search(grammar.text) else grammar.text
            return LLMatcher.grammar_from_lark(text)


def lark_of(grammar: Grammar) -> str:
    """Return the grammar as part of a Lark rule."""
    match grammar.kind:
        case "json":
            return lark_of_schema(json.loads(_schema(grammar.text)), any_whitespace=grammar.any_whitespace)
        case "regex":
            return _lark_regex(_regex(grammar.text))
        case "choice":
            return _lark_regex(_any_of(grammar.text))
    raise BadParams("grammar", "a Lark grammar cannot be part of another grammar")


def lark_of_schema(schema: Mapping[str, Any], *, lenient: bool = False, any_whitespace: bool = False) -> str:
    """Return the schema as part of a Lark rule. `lenient`: ignore unsupported keywords."""
    options = _options(any_whitespace=any_whitespace) | {"lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options})


def _options(*, any_whitespace: bool) -> dict[str, Any]:
    return _JSON | (_LOOSE if any_whitespace else _COMPACT)


def _lark_regex(expression: str) -> str:
    """Return the regex between slashes, with slashes and newlines escaped."""
    bare = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", expression, flags=re.DOTALL)
    return f"/{bare.replace(chr(10), chr(92) + 'n')}/"


def _lark_of_gbnf(text: str) -> str:
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the translator has no class of its own for some of its errors
        raise BadParams("grammar", f"invalid GBNF grammar: {error}") from None


def _any_of(text: str) -> str:
    return "|".join(map(_literally, _choices(text)))


def _schema(text: str) -> str:
    schema = _parsed(text, "a JSON schema")
    if not isinstance(schema, dict | bool):
        raise BadParams("grammar", f"must be an object, true or false, not {text:.60}")
    if schema is False:
        raise BadParams("grammar", "the JSON schema false allows no value")
    if key := too_large(schema):
        raise BadParams("grammar", f"{BAD_SCHEMA}: {key:.40} is a number that is too large")
    for key, number in _numbers(schema):
        if isinstance(number, float):
            continue
        above = number >= MOST and key in ("maximum", "exclusiveMaximum")  # no bound: values stay below it
        if not above and not _exact(number):
            why = f"{key:.40} is {number!s:.40}, which cannot be represented exactly"
            raise BadParams("grammar", f"{BAD_SCHEMA}: {why}")
    return text if isinstance(schema, dict) else "{}"


def _regex(text: str) -> str:
    if not text:
        raise BadParams("grammar", "the regular expression is empty")
    if re.fullmatch(r"(?:\\.|[^\\])*", text, re.DOTALL) is None:  # llguidance would read it as a slash
        raise BadParams("grammar", "the regular expression ends in a lone backslash")
    return text


def _choices(text: str) -> list[str]:
    choices = _parsed(text, "a JSON list of choices")
    if not isinstance(choices, list) or not 1 <= len(choices) <= MAX_CHOICES:
        raise BadParams("grammar", f"choices must be a list of 1 to {MAX_CHOICES} strings, not {text:.60}")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise BadParams("grammar", f"a choice must be a non-empty string, not {choice!r:.60}")
    return choices


def _literally(text: str) -> str:
    """Return a regular expression that matches exactly this text."""
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


def too_large(schema: Any) -> str:
    """Return the key of a number like 1e400, which Python reads as infinity, or "" if there is none."""
    infinite = (key for key, number in _numbers(schema) if isinstance(number, float) and math.isinf(number))
    return next(infinite, "")


def _numbers(value: Any, key: str = "the schema") -> Iterator[tuple[str, Any]]:
    """Yield the numbers in a JSON value, each with its key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, key)
    elif isinstance(value, int | float):
        yield key, value


def _exact(number: int) -> bool:
    return abs(number) <= MOST and min(int(float(number)), MOST) == number


def _too_deep() -> BadParams:
    return BadParams("grammar", f"must be nested at most {MAX_NESTING} levels deep; flatten it or use $defs")


def _depths(value: Any) -> Iterator[int]:
    """Yield the depths of the objects and lists in a JSON value."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        yield depth
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
