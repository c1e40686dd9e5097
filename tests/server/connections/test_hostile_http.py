"""Clients that send too slowly, too much, or something else than HTTP: nothing is left of them."""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.server.http import bodies, protocol
from tests.cases import one_of
from tests.examples import TIMES
from tests.server.conftest import KEY, Served, dry, half_read, serving
from tests.waiting import LIMIT, becomes

PATH = "/v1/completions"
SHORT = {"prompt": "half", "max_tokens": 10, "ignore_eos": True}
ENDLESS = SHORT | {"max_tokens": 1000, "stream": True}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    """A server that closes idle connections soon. Replies come at 50 tokens a second."""
    with serving(dry(rate=50)) as one:
        one.server.config.timeout_keep_alive = 0.2  # type: ignore[assignment]
        yield one


@pytest.fixture
def short_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_HEAD_SECONDS", 0.2)


def request(fields: Any, path: str = PATH, length: int | None = None) -> bytes:
    """Return a request. `length`: of its body as announced; by default the real one."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += (
        f"Content-Type: application/json\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


@contextlib.contextmanager
def connected(served: Served, *sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in sent:
            connection.sendall(part)
        yield connection


def rest(connection: socket.socket) -> bytes:
    """Return all the server sends until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def keeps_sending(connection: socket.socket, part: bytes) -> bool:
    """Send the part again and again. Return False once the server has closed the connection."""

    def refused() -> bool:
        try:
            connection.sendall(part)
            connection.settimeout(0.02)
            return connection.recv(65536) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    return not becomes(refused)


def test_a_request_may_arrive_byte_by_byte(hasty: Served) -> None:
    sent = request(SHORT | {"max_tokens": 3})
    with connected(hasty, *(sent[n : n + 1] for n in range(len(sent)))) as connection:
        response = HTTPResponse(connection)
        response.begin()
        assert json.loads(response.read())["usage"]["completion_tokens"] == 3


@pytest.mark.usefixtures("short_heads")
@pytest.mark.parametrize("first", [b"", HEALTH], ids=["first", "later"])
@pytest.mark.parametrize("part", [b"G", b"\r\n"], ids=["letters", "lines"])
def test_a_head_that_never_ends_is_given_up(hasty: Served, first: bytes, part: bytes) -> None:
    with connected(hasty, first) as connection:
        if first:
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert not keeps_sending(connection, part)


def test_a_body_that_stalls_is_given_up(hasty: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_BODY_SECONDS", 0.2)
    with connected(hasty, request(SHORT, length=1000)) as connection:
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.2 s" in answer
    assert hasty.becomes_idle()


@pytest.mark.parametrize("path", ["/nowhere", "/health"])
def test_a_body_that_nobody_reads_is_given_up(hasty: Served, path: str) -> None:
    with connected(hasty, request({}, path, length=10**9)) as connection:
        assert connection.recv(12)[:10] == b"HTTP/1.1 4"
        assert not keeps_sending(connection, b"x" * 100)


def test_what_follows_a_request_waits_for_its_reply(hasty: Served) -> None:
    for stream in (False, True):
        sent = request(SHORT | {"stream": stream})
        with connected(hasty, sent + HEALTH + request(SHORT) + LAST) as connection:
            answer = rest(connection)
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 4
        assert answer.endswith(b'{"status":"ready"}')
        first, _, others = answer.partition(b'{"status":"ready"}')
        assert (b"data: [DONE]" in first) == stream
        assert b'"completion_tokens":10' in others


@pytest.mark.parametrize(
    "garbage",
    one_of(
        2,
        [
            b"\x00\xff\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /%b HTTP/1.1\r\n\r\n" % (b"x" * 70_000),
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnever\r\n",
        ],
    ),
    ids=["bytes", "version", "long", "chunk"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_garbage_after_a_request_does_not_touch_its_reply(
    hasty: Served, garbage: bytes, stream: bool
) -> None:
    with connected(hasty, request(SHORT | {"stream": stream}) + garbage) as connection:
        response = HTTPResponse(connection)
        response.begin()
        body = response.read()
        assert response.status == 200
        assert body.endswith(b"data: [DONE]\n\n") if stream else b'"completion_tokens":10' in body
        assert rest(connection) == b""
    assert hasty.becomes_idle()


@pytest.mark.parametrize("after", [HEALTH, request(ENDLESS), HEALTH * 1000], ids=["one", "two", "many"])
def test_a_client_that_leaves_after_several_requests_is_noticed(hasty: Served, after: bytes) -> None:
    with connected(hasty, request(ENDLESS) + after) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert becomes(lambda: hasty.host.snapshot().running == 1)
    assert hasty.becomes_idle()
    assert becomes(lambda: not hasty.server.server_state.tasks)


def test_many_requests_at_once_are_answered_in_turn(slow: Served) -> None:
    with connected(slow, HEALTH * 1100 + LAST) as connection:
        assert rest(connection).count(b"HTTP/1.1 200 OK\r\n") == 1101


def test_a_reader_that_stops_holds_little_memory(hasty: Served) -> None:
    reader = half_read(hasty, 0, 4096, logprobs=20)
    assert becomes(lambda: hasty.host.snapshot().running == 1)
    sizes = [each.transport.get_write_buffer_size() for each in hasty.server.server_state.connections]
    assert max(sizes) < 2**18
    reader.close()
    assert hasty.becomes_idle()


def test_many_idle_connections_hold_nobody_up(hasty: Served) -> None:
    with contextlib.ExitStack() as held:
        idle = [held.enter_context(connected(hasty, HEALTH[: n % 30])) for n in range(300)]
        with hasty.client() as client:
            assert client.post(PATH, json=SHORT).json()["usage"]["completion_tokens"] == 10
        assert len(idle) == 300


PIECES = st.sampled_from(
    [
        HEALTH,
        LAST,
        request(SHORT | {"max_tokens": 2}),
        request(SHORT | {"max_tokens": 2, "stream": True}),
        request(SHORT, length=10),
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b'5\r\n{"a":\r\n0\r\n\r\n',
        b"fffffffffffffffff\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"\r\n\r\n",
    ]
)


@settings(max_examples=15 * TIMES, deadline=None)
@given(
    parts=st.lists(PIECES | st.binary(max_size=40), min_size=1, max_size=6),
    cut=st.integers(0, 400),
    leaves=st.sampled_from(["ends", "closes", "resets"]),
)
def test_no_bytes_break_the_server(fuzzed: Served, parts: list[bytes], cut: int, leaves: str) -> None:
    """`leaves`: how the client does. With "ends" it shuts down its writing side, and reads what comes."""
    sent = b"".join(parts)
    with contextlib.suppress(OSError), connected(fuzzed, sent[:cut], sent[cut:]) as connection:
        if leaves == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif leaves == "ends":
            connection.shutdown(socket.SHUT_WR)
            answer = rest(connection)
            assert not answer or answer.startswith(b"HTTP/1.")
            assert b" 500 " not in answer
    assert fuzzed.becomes_idle()
    assert httpx.get(f"{fuzzed.url}/health").status_code == 200
