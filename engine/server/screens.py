"""What a screen asks besides replies: where text lies among tokens, switches, speeds of the device."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from engine.codec import codec
from engine.layout import Layout
from engine.server.bodies import read_as
from engine.server.connection import state_of
from engine.server.openai.schema import Messages, Strict, TokenIds, openapi_body
from engine.snapshot import Speeds
from engine.wire import VERSION

router = APIRouter()
_LONGEST = 1_000_000  # tokens


class Laid(Strict):
    """A prompt as it was handed in: text, or messages."""

    prompt: str | Messages


class Said(Strict):
    """`tokens` of a reply, and the tokens `after` which it goes on."""

    tokens: TokenIds = Field(max_length=_LONGEST)
    after: TokenIds = Field(default_factory=list, max_length=_LONGEST)


class Switch(Strict):
    on: bool


@router.post("/engine/layout", openapi_extra=openapi_body(Laid))
async def layout(request: Request) -> dict[str, Any]:
    """Which characters of the prompt's text or messages its tokens stand for."""
    state, asked = state_of(request), await read_as(request, Laid)
    found = await state.desk.work(lambda: state.host.layout(asked.prompt))
    return {"v": VERSION, **codec(Layout).write(found)}


@router.post("/engine/texts", openapi_extra=openapi_body(Said))
async def texts(request: Request) -> dict[str, Any]:
    """What each token adds to a reply's text."""
    state, asked = state_of(request), await read_as(request, Said)
    found = await state.desk.work(lambda: state.host.texts(asked.tokens, asked.after))
    return {"v": VERSION, "texts": found}


@router.post("/engine/switches/{name}", status_code=204, openapi_extra=openapi_body(Switch))
async def switch(request: Request, name: str) -> Response:
    """Turns one of the snapshot's switches off or on, between two steps."""
    state, asked = state_of(request), await read_as(request, Switch)
    await state.desk.call(lambda: state.host.set_switch(name, asked.on))
    return Response(status_code=204)


@router.get("/engine/speeds")
async def speeds(request: Request) -> dict[str, Any]:
    """What the device can do at best; measured when it is asked for the first time."""
    state = state_of(request)
    found = await state.desk.work(state.host.speeds)
    return {"v": VERSION, **codec(Speeds).write(found)}
