"""vLLM's routes for tools that need a prompt's tokens: /tokenize, /detokenize and /version."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine.server.http.bodies import read_as, written
from engine.server.http.connection import state_of
from engine.server.http.errors import ApiError
from engine.server.http.sse import encoded
from engine.server.messages import template_messages
from engine.server.openai.errors import OpenAIRoute
from engine.server.schema import Messages, Strict, TokenIds, openapi_answers, openapi_body

router = APIRouter(route_class=OpenAIRoute)
_LONGEST = 1_000_000  # tokens
JSON = openapi_answers("application/json")


class TokenizeRequest(Strict):
    """A text, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = Field(None, min_length=1)


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: TokenIds = Field(max_length=_LONGEST)


@router.post(
    "/tokenize", openapi_extra=openapi_body(TokenizeRequest), response_class=Response, responses=JSON
)
async def tokenize(request: Request) -> Response:
    """Return the tokens of a prompt as the engine reads it."""
    state, body = state_of(request), await read_as(request, TokenizeRequest)
    await state.served_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    prompt: str | list[dict[str, Any]] = body.prompt or ""
    if body.messages is not None:
        prompt = template_messages(body.messages, state.host.templates)
    longest = (await state.engine.snapshot()).max_context

    def answer() -> bytes:
        ids = state.host.layout(prompt).ids
        return encoded({"tokens": ids, "count": len(ids), "max_model_len": longest})

    return await written(request, answer)


@router.post("/detokenize", openapi_extra=openapi_body(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, Any]:
    """Return the text of tokens. Control tokens have none."""
    state, body = state_of(request), await read_as(request, DetokenizeRequest)
    await state.served_name(body.model)
    texts = await state.engine.work(lambda: state.host.texts(body.tokens))
    return {"prompt": "".join(texts)}


@router.get("/version")
async def version(request: Request) -> dict[str, str]:
    """Return the version of this program."""
    return {"version": state_of(request).config.version or "0"}
