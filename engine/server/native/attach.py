"""/engine/replies, for remote screens: submit a prompt once, and resume reading after a disconnect."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from time import monotonic
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from engine.api.events import Delta
from engine.api.params import SamplingParams
from engine.api.wire import VERSION, encode_delta, params_from_json, params_to_json
from engine.host.prompts import Prompt
from engine.server.http.bodies import off_loop, read_as
from engine.server.http.connection import key_of, state_of
from engine.server.http.errors import ApiError
from engine.server.http.routes import DirectRoute
from engine.server.http.sse import PULSE, EventStream, event
from engine.server.native.replies import KeptReply
from engine.server.schema import (
    MAX_REPLY_PREFIX,
    STREAM,
    AdapterName,
    AnyPrompt,
    Ordered,
    TokenIds,
    openapi_answers,
    openapi_body,
)
from engine.server.state import ServerState

router = APIRouter(route_class=DirectRoute)


class ForkRequest(Ordered):
    """`params`: the engine's sampling parameters (docs/wire.md). `tag`: the client's name for the reply."""

    params: dict[str, Any] = Field(default_factory=dict)
    grace: float | None = Field(None, ge=0, le=86_400)
    keep: bool = False
    tag: str = Field("", max_length=64)


class ReplyRequest(ForkRequest):
    """`prompt`: text, token ids, or messages. `said`: tokens that the reply starts with.

    `adapter`: the name of a loaded LoRA adapter.
    """

    prompt: AnyPrompt
    adapter: AdapterName = ""
    said: TokenIds = Field(default_factory=list, max_length=MAX_REPLY_PREFIX)


@router.post("/engine/replies", status_code=201, openapi_extra=openapi_body(ReplyRequest))
async def begin(request: Request) -> Response:
    """Submit a prompt. The reply also runs without a reader, as long as `grace` or `keep` allow."""
    body = await read_as(request, ReplyRequest)
    params = await off_loop(request, lambda: params_from_json(body.params))
    adapter = body.adapter
    return await _start(request, body, body.prompt, params, reply_prefix=body.said, adapter=adapter)


@router.post("/engine/replies/{id}/fork", status_code=201, openapi_extra=openapi_body(ForkRequest))
async def fork(request: Request, id: str) -> Response:
    """Fork a running reply. All tokens before the fork count as the new reply's prompt."""
    parent = state_of(request).replies.find(id, key_of(request))
    body = await read_as(request, ForkRequest)
    params = await off_loop(request, lambda: params_from_json(body.params, parent.params))
    return await _start(request, body, parent.prompt, params, parent=parent)


async def _start(
    request: Request,
    body: ForkRequest,
    prompt: Prompt,
    params: SamplingParams,
    *,
    reply_prefix: Sequence[int] = (),
    parent: KeptReply | None = None,
    adapter: str = "",
) -> Response:
    reply = await state_of(request).replies.begin(
        key_of(request),
        prompt,
        params,
        urgency=body.urgency,
        grace=body.grace,
        keep=body.keep,
        tag=body.tag,
        reply_prefix=reply_prefix,
        parent=parent,
        adapter=adapter,
    )
    return JSONResponse(_record(reply), 201)


@router.get("/engine/replies")
async def list_all(request: Request, tag: str = "") -> dict[str, Any]:
    """List this key's replies that are kept; with `tag`, only that one, and its tokens before the deltas."""
    state = state_of(request)
    replies = state.replies.of(key_of(request), tag)
    records = [_record(reply) for reply in replies]
    if tag:
        for record, reply in zip(records, replies, strict=True):
            record["before"] = await _before(state, reply)
    return {"v": VERSION, "replies": records}


@router.get("/engine/replies/{id}", response_class=Response, responses=openapi_answers(STREAM))
async def read(request: Request, id: str) -> Response:
    """Stream its deltas. `Last-Event-ID` is the number of deltas to skip."""
    state = state_of(request)
    reply = state.replies.find(id, key_of(request))
    last = request.headers.get("last-event-id", "0")
    if not (last.isascii() and last.isdecimal() and len(last) < 18):
        raise ApiError(400, f"Last-Event-ID must be a count of deltas, got {last[:40]!r}")
    count = min(int(last), len(reply.deltas))
    return EventStream(_lines(state.replies.read(reply, count), state.host.words), lambda: None)


@router.delete("/engine/replies/{id}", status_code=204)
async def forget(request: Request, id: str) -> Response:
    """Abort the reply if it is running, and delete it."""
    replies = state_of(request).replies
    replies.forget(replies.find(id, key_of(request)))
    return Response(status_code=204)


async def _lines(
    batches: AsyncIterator[tuple[int, list[Delta]]], words: Callable[[Collection[int]], dict[str, str]]
) -> AsyncIterator[bytes]:
    try:
        async for count, deltas in batches:
            if not deltas:
                yield PULSE
                continue
            data: dict[str, Any] = {"v": VERSION, "deltas": [encode_delta(delta) for delta in deltas]}
            if shown := _shown(deltas):
                data["words"] = words(shown)
            yield event(data, "deltas", str(count))
        yield event({"v": VERSION}, "end")
    finally:
        await batches.aclose()  # type: ignore[attr-defined]


def _shown(deltas: Sequence[Delta]) -> set[int]:
    """Return every token in the logprobs."""
    return {
        token
        for delta in deltas
        for entry in delta.logprobs
        for token in (entry.token, *(token for token, _ in entry.top))
    }


async def _before(state: ServerState, reply: KeptReply) -> dict[str, Any]:
    """Return the part of the reply before its deltas."""
    host, prompt, tokens = state.host, reply.prompt, list(reply.look_back())

    def text() -> str:
        # Without a template, the text of the reply continues from the prompt's tokens.
        after = host.layout(prompt).ids if isinstance(prompt, str) else prompt
        return "".join(host.texts(tokens, after))

    before = await state.engine.work(text) if tokens else ""
    return {"prompt_tokens": reply.prompt_tokens, "tokens": tokens, "text": before}


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
        "unread": reply.unread,
        "tag": reply.tag,
        "age": monotonic() - reply.begun_at,
        "first": None if reply.first_at is None else reply.first_at - reply.begun_at,
        "lasted": None if reply.ended_at is None else reply.ended_at - reply.begun_at,
    }
