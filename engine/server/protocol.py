"""HTTP as uvicorn and httptools read it, with an end to how long a head may be, and how long it may take."""

import asyncio

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_HEAD = 64 * 1024  # bytes of the request line and all headers
MAX_HEADERS = 100
_HEAD_SECONDS = 20.0


class GuardedProtocol(HttpToolsProtocol):
    """One connection. uvicorn itself would take headers for ever."""

    _in_head = True
    _head = 0
    _refused = False
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head and self._patience is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse()

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._refused = True
            raise ValueError("the head of this request is too long")  # ends in send_400_response
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._refused:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _refuse(self) -> None:
        self._refused = True
        if not self.transport.is_closing():
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def _await_head(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(_HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class PatientWebSocket(WebSocketsSansIOProtocol):
    """When the server ends, uvicorn would cut every socket; here the routes close them when they are done."""

    def shutdown(self) -> None:
        if not self.handshake_complete:
            super().shutdown()

    async def send(self, message: ASGISendEvent) -> None:
        """To one who was just told that a frame of theirs is broken nothing more can be said."""
        if self.handshake_complete and self.close_sent:
            raise ClientDisconnected
        await super().send(message)
