"""Server-sent events: streamed responses that end when the client disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from json.encoder import encode_basestring as _quote
from typing import Any, TypeVar

from fastapi.responses import Response

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
PULSE = b": still here\n\n"  # a comment, so that proxies keep the connection open

SEND = "minichat.send"  # the entry of an ASGI scope that holds the server's own `send`

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def quoted(text: str) -> bytes:
    """Return text as a JSON string."""
    return _quote(text).encode(errors="replace")


def encoded(value: Any) -> bytes:
    """Return a value as JSON. A lone surrogate, which a client or a model may have escaped, becomes "?"."""
    return _encoder.encode(value).encode(errors="replace")


def event(value: Any, name: str = "", id: str = "") -> bytes:
    """Return one event, with its data as JSON."""
    head = f"id: {id}\n" if id else ""
    if name:
        head += f"event: {name}\n"
    return head.encode() + b"data: " + encoded(value) + b"\n\n"


class EventStream(Response):
    """Sends the chunks. It stops at once when the client disconnects; `close` always runs."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        self._chunks, self._close = chunks, close
        self.status_code, self.background = 200, None
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await unless_gone(receive, self._write(send, scope.get(SEND, send)))
        finally:
            self._close()

    async def _write(self, send: Any, send_chunk: Any) -> None:
        async for chunk in self._chunks:
            await send_chunk({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Any, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`. If the client disconnects first, cancel the work and return None."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        return None
    finally:
        for task in (doing, gone):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
