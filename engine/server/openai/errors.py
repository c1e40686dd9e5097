"""Engine errors with the field names of OpenAI's API, which differ for some fields."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from engine.api.errors import BadInput
from engine.server.http.errors import ApiError, renamed

_NAMES = {  # the engine's name: OpenAI's or vLLM's name
    "stop_ids": "stop_token_ids",
    "beams": "num_beams",
    "template options": "chat_template_kwargs",
}


def in_openai_words(error: BadInput) -> ApiError:
    """Return the response, with the field under the name that the client used."""
    return renamed(error, _NAMES)


class OpenAIRoute(APIRoute):
    """A route whose engine errors use OpenAI's field names."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_in_openai_words(request: Request) -> Response:
            try:
                return await handle(request)
            except BadInput as error:
                raise in_openai_words(error) from None

        return handle_in_openai_words
