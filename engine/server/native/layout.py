"""How text maps to tokens, for remote screens."""

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine.api.codec import codec
from engine.api.layout import PromptLayout
from engine.api.wire import VERSION
from engine.server.http.bodies import read_as, written
from engine.server.http.connection import state_of
from engine.server.http.sse import encoded
from engine.server.schema import Messages, Strict, TokenIds, openapi_answers, openapi_body

router = APIRouter()
_LONGEST = 1_000_000  # tokens
JSON = openapi_answers("application/json")


class LayoutRequest(Strict):
    """A prompt as it was submitted: text or messages."""

    prompt: str | Messages


class TextsRequest(Strict):
    """The `tokens` of a reply, and the tokens before it in `after`."""

    tokens: TokenIds = Field(max_length=_LONGEST)
    after: TokenIds = Field(default_factory=list, max_length=_LONGEST)


@router.post(
    "/engine/layout", openapi_extra=openapi_body(LayoutRequest), response_class=Response, responses=JSON
)
async def layout(request: Request) -> Response:
    """Return the characters of the prompt's text or messages that each token covers."""
    state, body = state_of(request), await read_as(request, LayoutRequest)

    def answer() -> bytes:
        found = state.host.layout(body.prompt)
        return encoded({"v": VERSION, **codec(PromptLayout).write(found)})

    return await written(request, answer)


@router.post(
    "/engine/texts", openapi_extra=openapi_body(TextsRequest), response_class=Response, responses=JSON
)
async def texts(request: Request) -> Response:
    """Return the text that each token adds to a reply."""
    state, body = state_of(request), await read_as(request, TextsRequest)
    await state.check_tokens(tokens=body.tokens, after=body.after)

    def answer() -> bytes:
        return encoded({"v": VERSION, "texts": state.host.texts(body.tokens, body.after)})

    return await written(request, answer)
