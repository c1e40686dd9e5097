"""Tool definitions from a client, validated, and the rules for the calls in a reply."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.grammar.source import too_large
from engine.server.http.errors import ApiError, quoted
from engine.server.reply_grammar import ToolCallRules
from engine.server.tool_calls.formats import Style
from engine.server.tool_calls.rules import Function

NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_KNOWN = {"name", "description", "parameters", "strict"}


def check_tools(tools: Sequence[dict[str, Any]], style: Style | None) -> None:
    """Refuse invalid definitions, and any if the model's template takes no tools."""
    if tools and style is None:
        problem = "this model's chat template takes no tools, or its call format is not supported"
        raise ApiError(400, f"tools: {problem}", param="tools")
    for n, tool in enumerate(tools):
        _check(tool, f"tools[{n}]")


def call_rules(
    tools: Sequence[Mapping[str, Any]], style: Style | None, *, must: bool, name: str | None, many: bool
) -> ToolCallRules | None:
    """Return the rules for calls of checked tools, or None if there are none. `name`: the one to call."""
    if style is None or not tools:
        if must:
            raise ApiError(400, "tool_choice: the request has no tools", param="tool_choice")
        return None
    functions = functions_of(tools)
    if name is not None:
        functions = [each for each in functions if each.name == name]
        if not functions:
            raise ApiError(400, f"tool_choice: there is no tool named {name[:80]!r}", param="tool_choice")
    return ToolCallRules(style, functions, must=must, many=many)


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    """Return the functions that checked tools define."""
    return [_function(tool["function"], f"tools[{n}]") for n, tool in enumerate(tools)]


def _function(given: dict[str, Any], place: str) -> Function:
    return Function(given["name"], given.get("parameters") or {}, bool(given.get("strict")), place)


def _check(tool: dict[str, Any], place: str) -> None:
    match tool:
        case {"type": "function", "function": {"name": str(name)} as function}:
            check_name(name, f"{place}.function.name")
            if unknown := tool.keys() - {"type", "function"}:
                raise bad_tool(f"{place}.{min(unknown)[:80]}", "is not a known field")
            check_function(function, f"{place}.function")
        case _:
            form = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
            raise bad_tool(place, f"must have the form {form}")


def check_name(name: str, place: str) -> None:
    if not NAME.fullmatch(name):
        raise bad_tool(place, f"must be 1 to 64 of a-z, A-Z, 0-9, _, . and -, got {quoted(name)}")


def check_function(function: Mapping[str, Any], place: str) -> None:
    """Check the members of a function other than its name. An error names the one in `place`."""
    if unknown := sorted(function.keys() - _KNOWN):
        raise bad_tool(f"{place}.{unknown[0][:80]}", "is not a known field")
    check_schema(function.get("parameters"), f"{place}.parameters")
    if not isinstance(function.get("strict"), bool | None):
        raise bad_tool(f"{place}.strict", "must be true or false")
    if not isinstance(function.get("description"), str | None):
        raise bad_tool(f"{place}.description", "must be a string")


def check_schema(schema: Any, place: str) -> None:
    """Check what templates and the rules of calls read of a function's parameters."""
    if schema is None:
        return
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise bad_tool(place, "must be a JSON schema of type object")
    if not isinstance(schema.get("properties"), dict | None):
        raise bad_tool(f"{place}.properties", "must be an object")
    required = schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise bad_tool(f"{place}.required", "must be a list of names")
    if key := too_large(schema):
        raise bad_tool(place, f"has a number that is too large: {key:.40}")


def bad_tool(place: str, problem: str) -> ApiError:
    return ApiError(400, f"{place} {problem}", param=place)
