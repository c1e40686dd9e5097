"""Server-sent events: streamed responses that end when the client disconnects."""

import json
from collections.abc import AsyncIterator, Callable
from json.encoder import encode_basestring as _quote
from typing import Any

from fastapi.responses import Response

from engine.server.http.leaving import unless_gone

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
    if value is None:
        return b"null"
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
            await unless_gone(scope, receive, self._write(scope.get(SEND, send)))
        finally:
            self._close()

    async def _write(self, send: Any) -> None:
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
