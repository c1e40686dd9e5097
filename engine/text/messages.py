"""Chat messages from clients: validated, normalized, and with their control tokens split."""

import json
import re
from collections.abc import Callable
from typing import Any

from engine.api.errors import BadInput
from engine.text.tokenizer import checked_text

ROLE = re.compile(r"[\w .-]{1,64}")  # templates put it into control tokens: '<|' + role + '|>'
DEPTH = 64
Break = Callable[[str], str]


def clean_messages(messages: object, breaker: Callable[[str], Break]) -> list[dict[str, Any]]:
    """Return the messages for a template. `breaker` returns a role's function to split control tokens."""
    if not isinstance(messages, list | tuple) or not messages:
        raise _bad("messages", f"must be a list of at least one message, not {_shown(messages)}")
    return [_message(message, f"messages[{n}]", breaker) for n, message in enumerate(messages)]


def clean_tools(tools: object, break_up: Break) -> list[Any] | None:
    """Return the tool definitions for a template."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, dict) for tool in tools):
        raise _bad("tools", f"must be a list of objects that describe functions, not {_shown(tools)}")
    return [clean(tool, f"tools[{n}]", break_up) for n, tool in enumerate(tools)] or None


def clean(value: object, place: str, break_up: Break, depth: int = 0) -> Any:
    """Return a copy of JSON types with control tokens split. Errors name the place."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return break_up(checked_text(value, place, field=place))
        case list() | tuple() | dict() if depth == DEPTH:
            raise _bad(place, f"must be nested at most {DEPTH} levels deep")
        case list() | tuple():
            return [clean(part, f"{place}[{n}]", break_up, depth + 1) for n, part in enumerate(value)]
        case dict():
            return {
                break_up(checked_text(key, f"a key of {place}", field=place)): clean(
                    part, f"{place}.{key}", break_up, depth + 1
                )
                for key, part in value.items()
            }
    kinds = "text, a number, true, false, null, a list or an object"
    raise _bad(place, f"must be {kinds}, not {type(value).__name__}")


def _shown(value: object) -> str:
    """The start of a value, as in JSON if it is one."""
    if isinstance(value, str):
        return repr(value[:80])
    try:
        return json.dumps(value)[:80]
    except (TypeError, ValueError):  # of another type, or with itself inside
        return f"{value!r:.80}"


def _bad(place: str, problem: str) -> BadInput:
    return BadInput(f"{place} {problem}", field=place)


def _message(message: object, place: str, breaker: Callable[[str], Break]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _bad(place, f"must be an object with role and content, not {_shown(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        names = "system, user, assistant or tool"
        raise _bad(f"{place}.role", f"must be a name such as {names}, not {_shown(role)}")
    shaped = dict(message)
    if "content" in shaped:
        shaped["content"] = content_text(shaped["content"], f"{place}.content")
        if shaped["content"] is None and not shaped.get("tool_calls"):  # templates join it to other text
            raise _bad(f"{place}.content", "must be text or a list of text parts, not null")
    if shaped.get("tool_calls"):
        shaped["tool_calls"] = _calls(shaped["tool_calls"], f"{place}.tool_calls")
    cleaned: dict[str, Any] = clean(shaped, place, breaker(role))
    return cleaned


def content_text(content: object, place: str) -> str | None:
    """Return the content as text, which templates expect. Text parts are joined."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(place, f"must be text or a list of text parts, not {_shown(content)}")
    texts: list[str] = []
    for n, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": str(kind)} if kind != "text":
                raise _bad(f"{place}[{n}]", f"has type {kind!r:.80}; this engine supports only text")
            case _:
                form = '{"type": "text", "text": "..."}'
                raise _bad(f"{place}[{n}]", f"must have the form {form}, not {_shown(part)}")
    return "\n".join(texts)


def _calls(calls: object, place: str) -> list[Any]:
    """Parse the calls' arguments: clients send JSON text, templates expect an object."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _bad(place, f"must be a list of objects, not {_shown(calls)}")
    return [_call(call) for call in calls]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    match call:
        case {"function": {"arguments": str(text)} as function}:
            try:
                arguments = json.loads(text)
            except ValueError:  # a model may have written invalid JSON; pass it on unchanged
                return call
            if isinstance(arguments, dict):
                return {**call, "function": {**function, "arguments": arguments}}
    return call
