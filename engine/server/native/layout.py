"""What a screen asks besides replies: where text lies among tokens."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from engine.api.codec import codec
from engine.api.layout import PromptLayout
from engine.api.wire import VERSION
from engine.server.http.bodies import read_as
from engine.server.http.connection import state_of
from engine.server.schema import Messages, Strict, TokenIds, openapi_body

router = APIRouter()
_LONGEST = 1_000_000  # tokens


class LayoutRequest(Strict):
    """A prompt as it was handed in: text, or messages."""

    prompt: str | Messages


class TextsRequest(Strict):
    """`tokens` of a reply, and the tokens `after` which it goes on."""

    tokens: TokenIds = Field(max_length=_LONGEST)
    after: TokenIds = Field(default_factory=list, max_length=_LONGEST)


@router.post("/engine/layout", openapi_extra=openapi_body(LayoutRequest))
async def layout(request: Request) -> dict[str, Any]:
    """Which characters of the prompt's text or messages its tokens stand for."""
    state, asked = state_of(request), await read_as(request, LayoutRequest)
    found = await state.engine.work(lambda: state.host.layout(asked.prompt))
    return {"v": VERSION, **codec(PromptLayout).write(found)}


@router.post("/engine/texts", openapi_extra=openapi_body(TextsRequest))
async def texts(request: Request) -> dict[str, Any]:
    """What each token adds to a reply's text."""
    state, asked = state_of(request), await read_as(request, TextsRequest)
    found = await state.engine.work(lambda: state.host.texts(asked.tokens, asked.after))
    return {"v": VERSION, "texts": found}
