"""One response to one generation: whole or as a stream, until the client disconnects."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from engine.api.errors import BadParams
from engine.api.request import Finish
from engine.server.generation import Batch, Generation
from engine.server.http.bodies import GONE
from engine.server.http.errors import ApiError
from engine.server.http.leaving import unless_gone
from engine.server.http.sse import EventStream, encoded


async def streamed(
    request: Request,
    run: Generation,
    chunks: Callable[[Generation], AsyncIterator[bytes]],
    stream: type[EventStream] = EventStream,
) -> Response:
    """Stream the chunks of a generation that has begun."""
    if not await _accepted(request, run):
        return Response(status_code=GONE)
    return stream(chunks(run), run.close)


async def gathered(
    request: Request,
    run: Generation,
    whole: Callable[[Generation], Coroutine[Any, Any, dict[str, Any]]],
) -> Response:
    """Send what `whole` makes of a generation that has begun, as JSON."""
    if not await _accepted(request, run):
        return Response(status_code=GONE)
    try:
        record = await unless_gone(request.scope, request.receive, whole(run))
    finally:
        run.close()
    if record is None:
        return Response(status_code=GONE)
    return Response(encoded(record), media_type="application/json")


async def _accepted(request: Request, run: Generation) -> bool:
    """Wait until the engine has accepted the prompts. Returns False if the client has disconnected."""
    accepted = None
    try:
        accepted = await unless_gone(request.scope, request.receive, run.accepted())
    finally:
        if accepted is None:
            run.close()
    return accepted is not None


def raise_failed(batch: Batch) -> None:
    """Raise an error if a reply failed. A `fault` names the request field that caused it."""
    for delta in (delta for _, deltas in batch for delta in deltas if delta.finish is Finish.FAILED):
        if delta.fault:
            raise BadParams(delta.fault, delta.error)
        raise ApiError(500, delta.error or "the reply failed", code="reply_failed")
