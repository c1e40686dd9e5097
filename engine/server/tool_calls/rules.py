"""What a reply may call, and the rules of a grammar for it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.api.errors import BadParams
from engine.grammar.source import lark_of_schema

ANYTHING = "(.|\\n)*"
_PLAIN = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_WORDS = frozenset({"title", "description", "$schema", "examples", "default"})


@dataclass(frozen=True, slots=True)
class Function:
    """A function the model may call. Unless `strict`, unsupported parts of its schema are ignored."""

    name: str
    parameters: dict[str, Any]
    strict: bool
    place: str = "tools"  # where the client defined it


FunctionRules = Callable[[str, Function], Iterator[str]]


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How calls are written. A block opens, has calls, and closes."""

    open: str
    function: FunctionRules  # the rules of one call under this name; it includes the text around the call
    close: str = ""
    between: str | None = None  # text between two calls of a block; None: a block has one
    again: str | None = None  # text between two blocks; None: a reply has one
    begins: str = ""  # the first character of calls, where a reply is calls or text, but not both
    before: str = ""  # rules of what may come before calls that must be there, under the name `lead`


def block_rules(syntax: CallSyntax, functions: Sequence[Function], *, many: bool) -> list[str]:
    """Return the rules `calls`, for calls alone, and `free`, for text in which calls may be."""
    rules = [rule for n, each in enumerate(functions) for rule in _rules_of(syntax, f"function_{n}", each)]
    rules.append("function: " + " | ".join(f"function_{n}" for n in range(len(functions))))
    more = f" ({quoted(syntax.between)} function)*" if many and syntax.between is not None else ""
    rules.append(f"rest: function{more} {quoted(syntax.close)}")
    rules.append(f"block: {quoted(syntax.open)} rest")
    again = f" ({quoted(syntax.again)} block)*" if many and syntax.again is not None else ""
    lead = "lead? " if syntax.before else ""
    rules += [syntax.before] if lead else []
    rules.append(f"calls: {lead}block{again}")
    if syntax.begins:
        rules += [f"WORDS: /\\s*[^\\{syntax.begins}\\s]{ANYTHING}/", "free: calls | WORDS?"]
        return rules
    rules += [f"opened[lazy]: ANY {quoted(syntax.open)}", f"ANY: /{ANYTHING}/"]
    rules.append("free: (opened rest)* ANY" if many else "free: ANY | opened rest")
    return rules


def _rules_of(syntax: CallSyntax, name: str, function: Function) -> list[str]:
    try:
        return [*syntax.function(name, function)]
    except BadParams as error:
        raise bad_schema(function, error.problem) from None


def bad_schema(function: Function, problem: str) -> BadParams:
    return BadParams(function.place, f"the schema of function {function.name!r}: {problem}")


def around_json(head: Callable[[str], str], tail: str = "") -> FunctionRules:
    """A call whose arguments are a JSON object. `head` is the text before it, by the function's name."""

    def rules(rule: str, function: Function) -> Iterator[str]:
        schema = lark_of_schema({"type": "object", **function.parameters}, lenient=not function.strict)
        yield f"{rule}: {quoted(head(function.name))} {schema} {quoted(tail)}"

    return rules


def by_argument(
    head: str,
    tail: str,
    argument: Callable[[str, Mapping[str, Any], bool], str],
    separator: str = "",
) -> FunctionRules:
    """A call whose arguments are written one by one, in the order of the schema.

    `head` has the function's name at `{}`. `argument` returns a rule's right side for one of them, by its
    name and its schema; its third parameter is whether every keyword of the schema must be met.
    """

    def rules(rule: str, function: Function) -> Iterator[str]:
        schema = function.parameters
        _check(function)
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        required = schema.get("required") or ()
        names = [*(schema.get("properties") or {})]
        for n, name in enumerate(names):
            given = schema["properties"][name]
            inner = {**given, **shared} if isinstance(given, dict) else {}
            yield f"{rule}_{n}: {argument(name, inner, function.strict)}"
        arguments = _series(rule, names, required, separator)
        yield f"{rule}: {quoted(head.format(function.name))} {arguments} {quoted(tail)}"

    return rules


def _series(rule: str, names: Sequence[str], required: Sequence[str], separator: str) -> str:
    """Return the arguments in their order. Those that are not required may be left out."""
    starts, empty = [], True
    for n, name in enumerate(names):
        rest = [
            f"({quoted(separator)} {rule}_{m})" + ("" if other in required else "?")
            for m, other in enumerate(names[n + 1 :], n + 1)
        ]
        starts.append(" ".join([f"{rule}_{n}", *rest]))
        if name in required:
            empty = False
            break
    return f"({' | '.join(starts)}){'?' if empty else ''}" if starts else ""


def _check(function: Function) -> None:
    unmet = sorted(function.parameters.keys() - _PLAIN - _WORDS) if function.strict else []
    if unmet:
        problem = (
            f"{unmet[0]} in the parameters of {function.name} is not supported in this model's call format"
        )
        raise BadParams("grammar", problem)


def raw_text(schema: Mapping[str, Any], end: str, strict: bool, *, before: str = "") -> str:
    """Return a rule's right side for a string that is written as it is, up to and with `end`.

    `before`: text between the string and `end`. A string of any length may hold anything but `end`, whose
    first character must not occur in it again.
    """
    close = before + end
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices and all(isinstance(each, str) for each in choices):
        return f"({' | '.join(map(quoted, choices))}) {quoted(close)}"
    if strict and (unmet := sorted(schema.keys() & {"pattern", "format"})):
        raise BadParams("grammar", f"{unmet[0]} is not supported in this model's call format")
    if schema.keys() & {"minLength", "maxLength"}:
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return f"/[^{_class(end[0])}]{{{least},{most}}}/ {quoted(close)}"
    return f"/{_without(end)}{_literal(close)}/"


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a value is always a string."""
    return schema.get("type") == "string"


def json_of(schema: Mapping[str, Any], strict: bool) -> str:
    return lark_of_schema(schema, lenient=not strict)


def quoted(literal: str) -> str:
    return json.dumps(literal, ensure_ascii=False)


def _without(word: str) -> str:
    """Return a regular expression for text that does not hold the word: no part after one of its first
    characters continues with the others.
    """
    other = f"[^{_class(word[0])}]*"
    part = ""
    for letter in reversed(word[1:]):
        mismatch = f"[^{_class(word[0])}{_class(letter)}]{other}"
        part = f"({mismatch}|{_literal(letter)}{part})?" if part else f"({mismatch})?"
    return f"{other}({_literal(word[0])}{part})*"


def _literal(text: str) -> str:
    """Return a regular expression for this text, as Lark writes one between slashes."""
    return "".join(
        "\\n" if each == "\n" else each if each.isalnum() or each in "_<>=" else f"\\{each}" for each in text
    )


def _class(letter: str) -> str:
    return f"\\{letter}" if letter in "\\]^-/" else letter
