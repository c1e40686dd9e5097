"""WebSocket clients that send anything: each message gets an answer, or the socket is closed with a code."""

import base64
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from websockets.sync.client import ClientConnection, connect

from engine.server.http.protocol import LenientWebSocket
from tests.examples import TIMES
from tests.server.conftest import KEY, Served, dry, serving
from tests.waiting import LIMIT, becomes

CONT, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9
LONG = {"max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def steady() -> Iterator[Served]:
    with serving(dry(rate=50), max_body=2**16) as one:
        yield one


def frame(kind: int, data: bytes = b"", *, last: bool = True, masked: bool = True, rsv: int = 0) -> bytes:
    """Return a frame as a client sends it; the mask is zero."""
    size = len(data)
    length = size if size < 126 else 126 if size < 2**16 else 127
    head = bytes([last << 7 | rsv << 4 | kind, masked << 7 | length])
    head += struct.pack({126: ">H", 127: ">Q"}[length], size) if length > 125 else b""
    return head + (bytes(4) if masked else b"") + data


def says(**message: Any) -> bytes:
    return frame(TEXT, json.dumps(message).encode())


@contextmanager
def shaken(served: Served, path: str = "/ws") -> Iterator[socket.socket]:
    """Yield a connection that has become a WebSocket."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT) as connection:
        name = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += (
            f"Authorization: Bearer {KEY}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {name}\r\n\r\n"
        )
        connection.sendall(head.encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += connection.recv(1)
        assert answer.startswith(b"HTTP/1.1 101 ")
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(CONT, b"x"), 1002),
        (frame(TEXT, b"{", last=False) + frame(TEXT, b"}"), 1002),
        (frame(PING, b"x", last=False), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(TEXT, b"{}", masked=False), 1002),
        (frame(TEXT, b"{}", rsv=4), 1002),
        (frame(5), 1002),
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, b"\x00\x05"), 1002),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"x" * (2**16 + 1)), 1009),
        (frame(TEXT, b"x" * 2**15, last=False) + frame(CONT, b"x" * (2**15 + 1)), 1009),
        (frame(TEXT)[:1] + b"\xff" + b"\x7f" + b"\xff" * 7 + bytes(4), 1009),
        (frame(CLOSE), None),
        (frame(CLOSE, b"\x0f\xa0bye"), 4000),
    ],
)
@pytest.mark.parametrize("path", ["/ws", "/ws/events"])
def test_a_broken_frame_closes_the_socket_and_its_replies(
    steady: Served, path: str, sent: bytes, code: int | None
) -> None:
    with shaken(steady, path) as connection:
        if path == "/ws":
            connection.sendall(says(type="generate", id="a", prompt="x", params=LONG))
            assert becomes(lambda: steady.host.snapshot().running == 1)
        connection.sendall(sent)
        end = until_closed(connection)
    assert frame(CLOSE, struct.pack(">H", code) if code else b"", masked=False)[:1] in end
    if code:
        assert struct.pack(">H", code) in end
    assert steady.becomes_idle()
    assert becomes(lambda: not steady.server.server_state.connections)


@contextmanager
def talking(served: Served) -> Iterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with connect(f"ws://127.0.0.1:{served.port}/ws", additional_headers=headers) as one:
        yield one


def test_a_binary_message_is_refused_in_words(steady: Served) -> None:
    with talking(steady) as one:
        one.send(b'{"type": "cancel", "id": "a"}')
        error = json.loads(one.recv(LIMIT))["error"]
    assert error["message"] == "messages must be text, got a binary one"


def test_a_message_in_a_thousand_fragments_is_read(steady: Served) -> None:
    with talking(steady) as one:
        text = json.dumps({"type": "generate", "id": "a", "prompt": "x", "params": {"max_tokens": 1}})
        one.send([text[:1], *[""] * 1000, *text[1:]])
        assert json.loads(one.recv(LIMIT))["type"] == "started"


def socket_of(served: Served) -> LenientWebSocket:
    [found] = [each for each in served.server.server_state.connections if isinstance(each, LenientWebSocket)]
    return found


def test_fragments_hold_no_more_memory_than_their_bytes(steady: Served) -> None:
    with shaken(steady) as connection:
        connection.sendall(frame(TEXT, b"{", last=False) + frame(CONT, last=False) * 20_000)
        connection.sendall(frame(CONT, b"  ", last=False) * 1000 + frame(PING, b"now"))
        assert connection.recv(2)[:1] == frame(10)[:1]
        assert len(socket_of(steady).frames) <= 2


def test_pings_that_nobody_reads_the_answers_of_hold_little_memory(steady: Served) -> None:
    with shaken(steady) as connection:
        socket_of(steady)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(20):
            connection.sendall(frame(PING, b"x" * 125) * 2000)
        size = socket_of(steady).transport.get_write_buffer_size()
    assert size < 2**20
    assert steady.becomes_idle()


def test_messages_that_arrive_together_are_answered_in_turn(steady: Served) -> None:
    with talking(steady) as one:
        for n in range(200):
            one.send(json.dumps({"type": "cancel", "id": f"n{n}"}))
        assert [json.loads(one.recv(LIMIT))["id"] for _ in range(200)] == [f"n{n}" for n in range(200)]


def test_a_reply_whose_client_leaves_at_once_is_aborted(steady: Served) -> None:
    with shaken(steady) as connection:
        connection.sendall(says(type="generate", id="a", prompt="x", params=LONG) + frame(CLOSE))
        until_closed(connection)
    assert steady.becomes_idle()


def test_a_full_server_is_told_over_a_socket() -> None:
    with serving(dry(rate=50), in_flight=2, per_key=2) as small, talking(small) as one:
        for name in "abc":
            one.send(json.dumps({"type": "generate", "id": name, "prompt": "x", "params": LONG}))
        while (answer := json.loads(one.recv(LIMIT)))["type"] != "error":
            pass
        assert answer["id"] == "c" and answer["error"]["code"] == "rate_limit_exceeded"
        one.send(json.dumps({"type": "cancel", "id": "a"}))
        while json.loads(one.recv(LIMIT))["type"] != "done":
            pass
        one.send(json.dumps({"type": "generate", "id": "c", "prompt": "x", "params": LONG}))
        while json.loads(one.recv(LIMIT))["type"] != "started":
            pass


KINDS = st.sampled_from(["generate", "update", "cancel", "wave", 5])
MORE = {
    "prompt": st.sampled_from([[1], "x", [], 5]),
    "params": st.sampled_from([{"max_tokens": 3}, {"max_tokens": 0}, 5]),
    "changes": st.sampled_from([{"temperature": 0.5}, {}, {"n": 2}]),
}
MESSAGES = st.fixed_dictionaries({"type": KINDS, "id": st.sampled_from(["a", "b", None])}, optional=MORE)
FRAMES = st.one_of(
    MESSAGES.map(lambda message: frame(TEXT, json.dumps(message).encode())),
    st.builds(
        lambda kind, data, last, rsv: frame(kind, data, last=last, rsv=rsv),
        st.sampled_from([CONT, TEXT, BINARY, PING, 10]),
        st.binary(max_size=20),
        st.booleans(),
        st.sampled_from([0, 0, 0, 4]),
    ),
    st.binary(max_size=10),
    st.just(frame(CLOSE)),
)


@settings(max_examples=13 * TIMES, deadline=None)
@example(frames=[frame(TEXT, b"\xff"), frame(CLOSE)], cut=300)
@given(frames=st.lists(FRAMES, min_size=1, max_size=8), cut=st.integers(0, 300))
def test_no_frames_break_the_server(fuzzed: Served, frames: list[bytes], cut: int) -> None:
    sent = b"".join(frames) + frame(CLOSE)
    with suppress(OSError), shaken(fuzzed) as connection:
        connection.sendall(sent[:cut])
        connection.sendall(sent[cut:])
        connection.shutdown(socket.SHUT_WR)
        until_closed(connection)
    assert fuzzed.becomes_idle()
    with talking(fuzzed) as one:
        one.send(json.dumps({"type": "cancel", "id": "a"}))
        assert json.loads(one.recv(LIMIT))["type"] == "error"
