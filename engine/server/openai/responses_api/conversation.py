"""The input of a response as chat messages, and its tools as those of a chat."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from engine.server.http.errors import ApiError, quoted
from engine.server.tool_definitions import bad_tool, check_function, check_name
from engine.text.tokenizer import checked_text

_ROLES = ("system", "developer", "user", "assistant")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ITEMS = "message, function_call, function_call_output and reasoning"

Message = dict[str, Any]


def chat_messages(given: str | Sequence[dict[str, Any]], instructions: str | None) -> list[Message]:
    """Return the conversation. Many templates take one system message, so what comes first is joined."""
    if isinstance(given, str):
        messages = [{"role": "user", "content": checked_text(given, "input", field="input")}]
    else:
        messages = list[Message]()
        for n, item in enumerate(given):
            _add(messages, item, f"input[{n}]")
    if not messages:
        raise ApiError(400, "input has no message", param="input")
    first = [*takewhile(lambda message: message["role"] in ("system", "developer"), messages)]
    texts = [message["content"] for message in first]
    if instructions is not None:
        texts.insert(0, checked_text(instructions, "instructions", field="instructions"))
    if not texts:
        return messages
    role = first[0]["role"] if first else "system"
    return [{"role": role, "content": "\n\n".join(texts)}, *messages[len(first) :]]


def chat_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools with their functions nested, as a chat has them."""
    return [{"type": "function", "function": _function(tool, f"tools[{n}]")} for n, tool in enumerate(tools)]


def _add(messages: list[Message], item: dict[str, Any], place: str) -> None:
    match item.get("type") or "message":
        case "message":
            role = item.get("role")
            if role not in _ROLES:
                raise _bad(f"{place}.role", f"must be one of {', '.join(_ROLES)}, got {quoted(role)}")
            messages.append({"role": role, "content": _content(item.get("content"), f"{place}.content")})
        case "function_call":
            _add_call(messages, item, place)
        case "function_call_output":
            content = _content(item.get("output"), f"{place}.output")
            id = _member(item, "call_id", place)
            messages.append({"role": "tool", "tool_call_id": id, "content": content})
        case "reasoning":
            pass  # templates leave out the reasoning of earlier replies
        case other:
            raise _bad(f"{place}.type", f"is {quoted(other)}; this server supports only {_ITEMS}")


def _add_call(messages: list[Message], item: dict[str, Any], place: str) -> None:
    """Add a call to the assistant's message before it, if there is one: a chat has them together."""
    function = {name: _member(item, name, place) for name in ("name", "arguments")}
    call = {"id": _member(item, "call_id", place), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: object, place: str) -> str:
    """Return the text of a message or of a tool's output. Text parts are joined, as in a chat."""
    match content:
        case str(text):
            return checked_text(text, place, field=place)
        case list(parts):
            return "\n".join(_part(part, f"{place}[{n}]") for n, part in enumerate(parts))
    raise _bad(place, f"must be text or a list of text parts, got {quoted(content)}")


def _part(part: object, place: str) -> str:
    match part:
        case {"type": str(kind)} if kind not in _TEXTS:
            raise _bad(place, f"has type {quoted(kind)}; this server supports only text")
        case {"type": str(kind), **members} if isinstance(text := members.get(_TEXTS[kind]), str):
            return checked_text(text, place, field=place)
    raise _bad(place, f'must have the form {{"type": "input_text", "text": "..."}}, got {quoted(part)}')


def _member(item: dict[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _bad(f"{place}.{name}", f"must be a string, got {quoted(value)}")
    return checked_text(value, f"{place}.{name}", field=f"{place}.{name}")


def _function(tool: dict[str, Any], place: str) -> dict[str, Any]:
    match tool:
        case {"type": str(kind)} if kind != "function":
            raise bad_tool(
                place, f"has type {quoted(kind)}; this server supports only tools of type function"
            )
        case {"type": "function", "name": str(name)}:
            check_name(name, f"{place}.name")
            function = {name: value for name, value in tool.items() if name != "type" and value is not None}
            check_function(function, place)
            return function
    raise bad_tool(place, 'must have the form {"type": "function", "name": ..., "parameters": ...}')


def _bad(place: str, problem: str) -> ApiError:
    return ApiError(400, f"{place} {problem}", param=place)
