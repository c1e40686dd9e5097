"""Chat messages from clients, validated and converted for chat templates."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.server.http.errors import ApiError, quoted

_ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
_CALL = '{"type": "function", "id": "...", "function": {"name": "...", "arguments": "..."}}'
_TEXTS = ("name", "tool_call_id", "reasoning_content")


def template_messages(
    messages: Sequence[dict[str, Any]], templates: Mapping[str, str]
) -> list[dict[str, Any]]:
    has_developer = any("developer" in source for source in templates.values())
    return [_message(message, f"messages[{n}]", has_developer) for n, message in enumerate(messages)]


def _message(message: dict[str, Any], place: str, has_developer: bool) -> dict[str, Any]:
    role = message.get("role")
    if role not in _ROLES:
        raise ApiError(
            400, f"{place}.role must be one of {', '.join(_ROLES)}, got {quoted(role)}", param=f"{place}.role"
        )
    # Replies that clients send back have other members, such as `refusal` or `provider_specific_fields`.
    kept = {name: value for name, value in message.items() if name in _FIELDS and value is not None}
    if isinstance(message.get("reasoning"), str):
        kept.setdefault("reasoning_content", message["reasoning"])  # vLLM's newer name
    for name in _TEXTS:
        if not isinstance(kept.get(name, ""), str):
            raise ApiError(400, f"{place}.{name} must be a string", param=f"{place}.{name}")
    if kept.get("tool_calls"):
        _check_calls(kept["tool_calls"], f"{place}.tool_calls")
    if role == "developer" and not has_developer:
        kept["role"] = "system"  # its older name, which every template supports
    if "content" not in kept:
        if role != "assistant" or not kept.get("tool_calls"):
            raise ApiError(400, f"{place}.content is missing", param=f"{place}.content")
        kept["content"] = ""
    return kept


def _check_calls(calls: Any, place: str) -> None:
    """Templates read the members of a call, and fail without them. Ollama's arguments are an object."""
    if not isinstance(calls, list):
        raise ApiError(400, f"{place} must be a list of calls, got {quoted(calls)}", param=place)
    for n, call in enumerate(calls):
        match call:
            case {"function": {"name": str(), "arguments": str() | dict()}}:
                continue
        raise ApiError(400, f"{place}[{n}] must have the form {_CALL}", param=f"{place}[{n}]")
