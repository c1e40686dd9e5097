"""The engine's state, health and metrics."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from engine.api.errors import EngineDead
from engine.api.wire import VERSION
from engine.server.http.bodies import read_as
from engine.server.http.connection import state_of
from engine.server.native.prometheus import MEDIA_TYPE
from engine.server.schema import Strict, TokenIds, openapi_answers, openapi_body
from engine.server.state import mode_of

router = APIRouter()
_TIMEOUT = 10.0  # seconds without a response after which the engine counts as failed


class Tokens(Strict):
    tokens: TokenIds = Field(max_length=100_000)


@router.get("/health")
@router.head("/health", include_in_schema=False)  # used by load balancers
async def health(request: Request) -> Response:
    """Return 200 while the engine is ready. Needs no key, and reveals only the status."""
    state = state_of(request)
    try:
        async with asyncio.timeout(_TIMEOUT):
            shot = await state.engine.snapshot()
        status = shot.state
    except TimeoutError:
        return JSONResponse({"status": "no answer"}, 503)
    except EngineDead:  # it has been closed
        status = "dead"
    if state.drain.begun:
        return JSONResponse({"status": "draining"}, 503, {"retry-after": "5"})
    if status == "ready" and shot.warmed < 1:
        return JSONResponse({"status": "warming", "share": round(shot.warmed, 2)}, 503, {"retry-after": "1"})
    return JSONResponse({"status": status}, 200 if status == "ready" else 503)


@router.get("/metrics", response_class=Response, responses=openapi_answers("text/plain"))
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus."""
    state = state_of(request)
    return Response(state.metrics.text(await state.engine.snapshot()), media_type=MEDIA_TYPE)


@router.get("/engine")
async def engine(request: Request) -> dict[str, Any]:
    """Return a summary of the server. /engine/snapshot has the full state."""
    state = state_of(request)
    shot, template = await state.engine.snapshot(), state.host.has_template
    return {
        "v": VERSION,
        "version": state.config.version,
        "boot": state.boot,
        "last_event": state.events.newest,
        "model": state.config.name,
        "state": shot.state,
        "error": shot.error,
        "draining": state.drain.begun,
        "has_template": template,
        "opens_thinking": template and await state.opens_thinking(mode_of({}), {}),
        "tools": state.tool_style,
        "max_context": shot.max_context,
        "quantization": shot.quantization,
        "running": shot.running,
        "waiting": shot.queued,
        "replicas": [each._asdict() for each in shot.replicas],
        "in_flight": state.gate.in_flight,
        "in_flight_most": state.gate.most,
        "uptime": max(0.0, time.time() - state.started),  # the clock may have been set back
    }


@router.get("/engine/snapshot")
async def snapshot(request: Request) -> Response:
    """Return the engine's state between two steps (docs/wire.md)."""
    return Response(await state_of(request).engine.snapshot_json(), media_type="application/json")


@router.post("/engine/words", openapi_extra=openapi_body(Tokens))
async def words(request: Request) -> dict[str, Any]:
    """Return the text of each token."""
    tokens = (await read_as(request, Tokens)).tokens
    state = state_of(request)
    await state.check_tokens(tokens=tokens)
    words = state.host.words(tokens)
    return {"v": VERSION, "words": [words[str(token)] for token in tokens]}
