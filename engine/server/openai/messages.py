"""Options for chat templates from clients, validated."""

from collections.abc import Sequence
from typing import Any

from engine.server.http.errors import ApiError
from engine.server.openai.schema import ChatRequest, ConversationFields
from engine.text.chat import RESERVED
from engine.text.messages import content_text


def template_options(body: ConversationFields) -> dict[str, Any]:
    """Return extra variables for a template, such as enable_thinking, and how it ends the prompt."""
    options = dict(body.chat_template_kwargs or {})
    for name in options:
        if not name.isidentifier() or name in RESERVED or name in ("self", "tools"):
            raise ApiError(
                400,
                f"chat_template_kwargs: {name[:80]!r} is not a valid option name",
                param="chat_template_kwargs",
            )
    if body.continue_final_message:
        options["continue_final_message"] = True
    elif body.add_generation_prompt is False:
        options["add_generation_prompt"] = False
    return options


def chat_options(body: ChatRequest) -> dict[str, Any]:
    """Return the same with what only a chat has. An effort decides whether a model thinks at all."""
    options, effort = template_options(body), body.reasoning_effort
    if effort is not None:
        options = {"reasoning_effort": effort, "enable_thinking": effort != "none", **options}
    return options if body.documents is None else options | {"documents": body.documents}


def continued_text(body: ConversationFields, messages: Sequence[dict[str, Any]]) -> str | None:
    """Return the text of the final message if the reply continues it."""
    if not body.continue_final_message:
        return None
    name, final = "continue_final_message", messages[-1]
    if body.add_generation_prompt:
        raise ApiError(400, f"{name} and add_generation_prompt cannot both be true", param=name)
    if final.get("role") != "assistant" or final.get("tool_calls"):
        raise ApiError(400, f"{name} requires a final assistant message without tool calls", param=name)
    return content_text(final.get("content"), f"messages[{len(messages) - 1}].content") or ""
