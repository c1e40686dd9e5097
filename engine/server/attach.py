"""/engine/replies, for screens elsewhere: handed in once, read again as often as the link is cut."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from engine.events import Delta
from engine.server.connection import key_of, state_of
from engine.server.limits import read_json
from engine.server.openai.errors import ApiError
from engine.server.openai.schema import STREAM, Strict, openapi_answers, openapi_body, parsed
from engine.server.replies import KeptReply
from engine.server.sse import PULSE, EventStream, event
from engine.wire import VERSION, encode_delta, params_from_json, params_to_json

router = APIRouter()
_PULSE = 15.0  # seconds


class ReplyRequest(Strict):
    """`prompt`: text, token ids, or messages. `params`: as the engine names them (docs/wire.md)."""

    prompt: str | list[int] | list[dict[str, Any]]
    params: dict[str, Any] = Field(default_factory=dict)
    priority: int = 0
    grace: float | None = Field(None, ge=0, le=86_400)
    keep: bool = False


@router.post("/engine/replies", status_code=201, openapi_extra=openapi_body(ReplyRequest))
async def begin(request: Request) -> Response:
    """Hands a prompt in; the reply runs whether it is read or not, for as long as `grace` or `keep` say."""
    asked = parsed(ReplyRequest, await read_json(request))
    reply = await state_of(request).replies.begin(
        key_of(request),
        asked.prompt,
        params_from_json(asked.params),
        priority=asked.priority,
        grace=asked.grace,
        keep=asked.keep,
    )
    return JSONResponse(_record(reply), 201)


@router.get("/engine/replies")
async def list_all(request: Request) -> dict[str, Any]:
    """The replies of this key that are still known."""
    replies = state_of(request).replies.of(key_of(request))
    return {"v": VERSION, "replies": [_record(reply) for reply in replies]}


@router.get("/engine/replies/{id}", response_class=Response, responses=openapi_answers(STREAM))
async def read(request: Request, id: str) -> Response:
    """Its deltas, from the one that `Last-Event-ID` counts on."""
    state = state_of(request)
    reply = state.replies.find(id, key_of(request))
    told = request.headers.get("last-event-id", "0")
    if not (told.isascii() and told.isdecimal() and len(told) < 18):
        raise ApiError(400, f"Last-Event-ID must be a count of deltas, not {told[:40]!r}")
    words = state.host.pieces if reply.params.logprobs is not None else None
    count = min(int(told), len(reply.deltas))
    return EventStream(_lines(state.replies.read(reply, count, _PULSE), words), lambda: None)


@router.delete("/engine/replies/{id}", status_code=204)
async def forget(request: Request, id: str) -> Response:
    """Aborts it, if it runs, and forgets it."""
    replies = state_of(request).replies
    replies.forget(replies.find(id, key_of(request)))
    return Response(status_code=204)


async def _lines(batches: AsyncIterator[tuple[int, list[Delta]]], pieces: Any) -> AsyncIterator[bytes]:
    try:
        async for count, deltas in batches:
            if not deltas:
                yield PULSE
                continue
            data: dict[str, Any] = {"v": VERSION, "deltas": [encode_delta(delta) for delta in deltas]}
            if pieces:
                data["words"] = _words(deltas, pieces)
            yield event(data, "deltas", str(count))
        yield event({"v": VERSION}, "end")
    finally:
        await batches.aclose()  # type: ignore[attr-defined]


def _words(deltas: Sequence[Delta], pieces: Any) -> dict[str, str]:
    """The text of every token that logprobs speak of."""
    ids = {
        token
        for delta in deltas
        for entry in delta.logprobs
        for token in (entry.token, *(rival for rival, _ in entry.top))
    }
    order = sorted(ids)
    return {str(id): piece.decode(errors="replace") for id, piece in zip(order, pieces(order), strict=True)}


def _record(reply: KeptReply) -> dict[str, Any]:
    finish = reply.deltas[-1].finish if reply.deltas else None
    return {
        "v": VERSION,
        "id": reply.id,
        "request": reply.request,
        "prompt_tokens": reply.run.usage.prompt,
        "params": params_to_json(reply.params),
        "deltas": len(reply.deltas),
        "finish": finish.value if finish else None,
        "readers": reply.readers,
    }
