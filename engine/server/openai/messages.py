"""Options for chat templates from clients, validated."""

from collections.abc import Mapping
from typing import Any

from engine.server.http.errors import ApiError
from engine.text.chat import RESERVED


def template_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return extra variables for a template, such as enable_thinking."""
    for name in options or {}:
        if not name.isidentifier() or name in RESERVED or name in ("self", "tools"):
            raise ApiError(
                400,
                f"chat_template_kwargs: {name[:80]!r} is not a valid option name",
                param="chat_template_kwargs",
            )
    return dict(options or {})
