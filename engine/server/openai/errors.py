"""Engine errors with the field names of OpenAI's API, which differ for some fields."""

from collections.abc import Mapping
from typing import ClassVar

from engine.api.errors import BadInput
from engine.server.http.errors import ApiError, renamed
from engine.server.http.routes import RenamingRoute

_NAMES = {  # the engine's name: OpenAI's or vLLM's name
    "stop_ids": "stop_token_ids",
    "beams": "num_beams",
    "template options": "chat_template_kwargs",
}


def to_openai_error(error: BadInput) -> ApiError:
    """Return the response, with the field under the name that the client used."""
    return renamed(error, _NAMES)


class OpenAIRoute(RenamingRoute):
    names = _NAMES


class ChatRoute(RenamingRoute):
    names: ClassVar[Mapping[str, str]] = {**_NAMES, "prompt": "messages"}


class ResponsesRoute(RenamingRoute):
    names: ClassVar[Mapping[str, str]] = {**_NAMES, "prompt": "input", "max_tokens": "max_output_tokens"}
