"""uvicorn's HTTP protocol with limits on the size of a request's head and the time it may take.

A client that shuts down its writing side after its request still gets its response.
"""

import asyncio
from collections.abc import Sequence

import httptools
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import State

from engine.server.http.leaving import CLIENT, Client

MAX_HEAD = 64 * 1024  # bytes of the request line and all headers
MAX_HEADERS = 100
_HEAD_SECONDS = 20.0
_FIRST_PROBE, _LAST_PROBE = 0.02, 1.0  # seconds between probes of a half-closed connection
_MAX_ZEROS = 8  # before the size of a chunk, for which clients may expect at most 16 digits
_UNTIL_CLOSED = "minichat.until_closed"  # in the scope of a request
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # clients skip any number of them


class GuardedProtocol(HttpToolsProtocol):
    """One connection. uvicorn alone sets no limit on headers."""

    _in_head = True
    _head = 0  # bytes of the head, without those that came with an earlier request
    _arriving = 0  # bytes of the current data
    _refused = False  # any further data is ignored
    _running: RequestResponseCycle | None = None  # the request that is being answered; later ones wait
    _client: Client | None = None  # of that request
    _timeout: asyncio.TimerHandle | None = None
    _next_probe: asyncio.TimerHandle | None = None
    _zeros = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._next_probe is not None:
            self._next_probe.cancel()
        self._abandon()
        super().connection_lost(exc)

    def _abandon(self) -> None:
        """Tell the request that is answered that its client is gone. uvicorn tells only the last one."""
        if self._running is not None and self._client is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
            self._client.leave()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Run the application. If it writes after the transport was closed, and before `connection_lost` is
        called, uvloop raises an error, which uvicorn would log.
        """

        async def guarded(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            async def send_if_open(message: ASGISendEvent) -> None:
                if self.transport.is_closing():
                    self._abandon()
                if cycle.scope["http_version"] == "1.0":
                    _send_unchunked(cycle, message)
                await send(message)

            await app(scope, receive, send_if_open)

        self._running = cycle
        self._client = Client(self.flow.resume_reading)
        cycle.scope[CLIENT] = self._client  # type: ignore[literal-required]
        super()._start_asgi_task(cycle, guarded)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for the response, if the client has sent a whole request.

        A client that is gone looks the same until something is written to it, so probes follow. HTTP/1.0 has
        no harmless one, TLS connections cannot stay open, and pipelined responses are not worth the care:
        there, the client counts as gone.
        """
        if not self._awaits_response():
            return False
        self.cycle.keep_alive = False
        self._probe(_FIRST_PROBE)
        return True

    def _awaits_response(self) -> bool:
        cycle = self.cycle
        if self._in_head or cycle.response_complete or cycle.more_body or self.pipeline:
            return False
        return self.scheme != "https" and cycle.scope["http_version"] != "1.0"

    def _probe(self, seconds: float) -> None:
        """Write something that has no meaning. A client that is gone answers with a reset, and the next probe
        finds it. `seconds`: until then.
        """
        cycle = self.cycle
        if cycle.response_complete or self.transport.is_closing():
            return
        if not cycle.response_started:
            self.transport.write(_CONTINUE)
        elif cycle.chunked_encoding and self._zeros < _MAX_ZEROS:
            self._zeros += 1
            self.transport.write(b"0")  # the next chunk's size starts with it
        self._next_probe = self.loop.call_later(seconds, self._probe, min(2 * seconds, _LAST_PROBE))

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._arriving = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        if self._in_head and self._timeout is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse()

    def _should_upgrade(self) -> bool:
        """Always stop at the head when httptools reports an upgrade, and let `_upgrade` decide."""
        return True

    def _upgrade(self, rest: bytes) -> None:
        """Upgrade to a WebSocket. Other offers, such as HTTP/2, are ignored, as the standard allows.

        httptools stopped after the head. To ignore the offer, the head is parsed again without it, so that
        the body is read.
        """
        method, version = self.scope["method"].encode(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is not supported.")
        elif self._get_upgrade() == b"websocket":
            self.handle_websocket_upgrade()
        else:
            lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
            lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
            self.data_received(b"\r\n".join([*lines, b"", rest]))

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, -self._arriving
        self._unset_keepalive_if_required()  # uvicorn would do so for any data, such as empty lines
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        self._unset_keepalive_if_required()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._refused = True
            raise ValueError("the head of the request is too long")  # leads to send_400_response
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._refused:
            self._refuse()
        elif not self._ends_with_reply():
            super().send_400_response(msg)

    def _refuse(self) -> None:
        self._refused = True
        if not self.transport.is_closing() and not self._ends_with_reply():
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def _ends_with_reply(self) -> bool:
        """Return whether earlier requests are still to be answered. Then the last reply ends the connection,
        and an error, which would be written into a reply, is left out.
        """
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()  # the broken one
        last = self.pipeline[0][0] if self.pipeline else self._running
        if last is None or last.response_complete or last.more_body:
            return False
        self._refused, self._in_head, last.keep_alive = True, False, False
        self._stop_waiting()
        return True

    def _await_head(self) -> None:
        self._stop_waiting()
        self._timeout = self.loop.call_later(_HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class LenientWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that its route closes at shutdown. uvicorn would close it at once."""

    def shutdown(self) -> None:
        if not self.handshake_complete:
            super().shutdown()

    def handle_cont(self, event: Frame) -> None:
        """Join fragments as they come. In a list, tiny ones would take far more memory than their bytes."""
        if len(self.frames) == 1:
            self.frames.append(bytearray())  # type: ignore[arg-type]
        self.frames[1] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer, unless the client does not read: answers to endless pings would fill the memory."""
        pongs = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(pongs))

    def send_receive_event_to_app(self) -> None:
        """Close the socket after text that is not UTF-8. uvicorn would log a traceback each time."""
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_utf8(self.frames):
            self.frames = []
            if self.conn.state is State.OPEN:  # not if the client's close frame came with the text
                self.conn.send_close(1007)
                self.handle_parser_exception()
        else:
            super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message. After a close frame, sent for instance for a broken frame, nothing can be sent."""
        if self.handshake_complete and (self.close_sent or self.transport.is_closing()):
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # refused; otherwise uvicorn would log an error


def _is_utf8(pieces: Sequence[bytes]) -> bool:
    try:
        b"".join(pieces).decode()
    except UnicodeDecodeError:
        return False
    return True


def _send_unchunked(cycle: RequestResponseCycle, message: ASGISendEvent) -> None:
    """Let the end of the connection end a response of unknown length: HTTP/1.0 has no chunks."""
    if message["type"] == "http.response.start":
        if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
            cycle.chunked_encoding = False
            cycle.scope[_UNTIL_CLOSED] = True  # type: ignore[literal-required]
    elif message["type"] == "http.response.body" and _UNTIL_CLOSED in cycle.scope:
        cycle.expected_content_length = len(message.get("body", b""))
