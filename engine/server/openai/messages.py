"""Chat messages from clients, validated and converted for chat templates."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.server.http.errors import ApiError
from engine.server.openai.schema import ChatRequest
from engine.text.chat import RESERVED
from engine.text.messages import content_text

_ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
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
            400, f"{place}.role must be one of {', '.join(_ROLES)}, got {role!r:.80}", param=f"{place}.role"
        )
    # Replies that clients send back have other members, such as `refusal` or `provider_specific_fields`.
    kept = {name: value for name, value in message.items() if name in _FIELDS and value is not None}
    for name in _TEXTS:
        if not isinstance(kept.get(name, ""), str):
            raise ApiError(400, f"{place}.{name} must be a string", param=f"{place}.{name}")
    if role == "developer" and not has_developer:
        kept["role"] = "system"  # its older name, which every template supports
    if "content" not in kept:
        if role != "assistant" or not kept.get("tool_calls"):
            raise ApiError(400, f"{place}.content is missing", param=f"{place}.content")
        kept["content"] = ""
    return kept


def template_options(asked: ChatRequest) -> dict[str, Any]:
    """Return extra variables for a template, such as enable_thinking, and how it ends the prompt."""
    options = dict(asked.chat_template_kwargs or {})
    for name in options:
        if not name.isidentifier() or name in RESERVED or name in ("self", "tools"):
            raise ApiError(
                400,
                f"chat_template_kwargs: {name[:80]!r} is not a valid option name",
                param="chat_template_kwargs",
            )
    if asked.reasoning_effort is not None:
        options.setdefault("reasoning_effort", asked.reasoning_effort)
    if asked.continue_final_message:
        options["continue_final_message"] = True
    elif asked.add_generation_prompt is False:
        options["add_generation_prompt"] = False
    return options


def continued_text(asked: ChatRequest) -> str | None:
    """Return the text of the final message if the reply continues it."""
    if not asked.continue_final_message:
        return None
    name, final = "continue_final_message", asked.messages[-1]
    if asked.add_generation_prompt:
        raise ApiError(400, f"{name} and add_generation_prompt cannot both be true", param=name)
    if final.get("role") != "assistant" or final.get("tool_calls"):
        raise ApiError(400, f"{name} requires a final assistant message without tool calls", param=name)
    return content_text(final.get("content"), f"messages[{len(asked.messages) - 1}].content") or ""
