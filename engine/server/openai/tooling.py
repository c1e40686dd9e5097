"""The tools for the template, and the rules for the calls in a reply, by `tools` and `tool_choice`."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.server.http.errors import ApiError
from engine.server.openai.schema import ChatRequest, NamedTool
from engine.server.reply_grammar import ToolCallRules
from engine.server.tool_definitions import check_tools, functions_of
from engine.server.tools import Style


def definitions(asked: ChatRequest, style: Style | None) -> Sequence[dict[str, Any]]:
    """Return the tools for the template."""
    check_tools(asked.tools or (), style)
    return () if asked.tool_choice == "none" else asked.tools or ()


def calls_of(
    asked: ChatRequest, tools: Sequence[Mapping[str, Any]], style: Style | None
) -> ToolCallRules | None:
    """Return the rules for tool calls in the reply, or None if there are no tools."""
    choice = asked.tool_choice
    must = choice == "required" or isinstance(choice, NamedTool)
    if style is None or not tools:
        if must:
            raise ApiError(400, "tool_choice: the request has no tools", param="tool_choice")
        return None
    functions = functions_of(tools)
    if isinstance(choice, NamedTool):
        functions = [each for each in functions if each.name == choice.function.name]
        if not functions:
            name = choice.function.name
            raise ApiError(400, f"tool_choice: there is no tool named {name[:80]!r}", param="tool_choice")
    return ToolCallRules(style, functions, must=must, many=asked.parallel_tool_calls is not False)
