"""What the engine refuses, in the words of OpenAI's clients: they know some fields by other names."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from engine.api.errors import BadInput
from engine.server.http.errors import ApiError, from_engine

_NAMES = {  # the engine's, and those that OpenAI or vLLM gave them
    "stop_ids": "stop_token_ids",
    "beams": "num_beams",
    "template options": "chat_template_kwargs",
}


def in_openai_words(error: BadInput) -> ApiError:
    """The answer, with the field by the name that the client gave it."""
    refusal = from_engine(error)
    ours = next((each for each in _NAMES if error.field == each or error.field.startswith(f"{each}.")), None)
    if ours is None:
        return refusal
    param = _NAMES[ours] + error.field.removeprefix(ours)
    text = param + str(error).removeprefix(error.field)
    return ApiError(refusal.status, text, param=param, code=refusal.code, cause=error)


class OpenAIRoute(APIRoute):
    """A route whose refusals are in those words."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_in_openai_words(request: Request) -> Response:
            try:
                return await handle(request)
            except BadInput as error:
                raise in_openai_words(error) from None

        return handle_in_openai_words
