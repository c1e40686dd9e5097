"""A client that shuts down its writing side gets its response; one that is gone has its request canceled."""

import json
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest

from tests.server.conftest import KEY, Served, dry, posted, serving, vanish
from tests.waiting import becomes

PATH = "/v1/completions"
REPLY = {"prompt": "half", "max_tokens": 15, "ignore_eos": True}
LONG = {"prompt": [7] * 5000, "max_tokens": 1}


@pytest.fixture(scope="module")
def chunked() -> Iterator[Served]:
    """A server that takes seconds to read a long prompt."""
    with serving(dry(rate=50, max_step_tokens=16)) as served:
        yield served


def half_closed(served: Served, fields: Any) -> tuple[HTTPResponse, bytes]:
    """Send a request, shut down the writing side once it runs, and return the response."""
    before = served.host.snapshot().finished
    with posted(served, PATH, fields) as connection:

        def begun() -> bool:  # or ended already, if this thread was slow
            shot = served.host.snapshot()
            return shot.running + shot.finished > before

        assert becomes(begun)
        connection.shutdown(socket.SHUT_WR)
        response = HTTPResponse(connection, method="POST")
        response.begin()
        return response, response.read()


def test_a_whole_reply_arrives(slow: Served) -> None:
    response, body = half_closed(slow, REPLY)
    assert response.status == 200 and response.will_close
    assert json.loads(body)["usage"]["completion_tokens"] == 15
    assert slow.becomes_idle()


def test_a_stream_arrives(slow: Served) -> None:
    response, body = half_closed(slow, REPLY | {"stream": True})
    assert response.status == 200 and body.endswith(b"data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in body.decode().split("\n\n")[:-2]]
    text = "".join(event["choices"][0]["text"] for event in events)
    with slow.client() as client:
        assert text == client.post(PATH, json=REPLY).json()["choices"][0]["text"]


def test_a_stream_that_is_silent_at_first_arrives(chunked: Served) -> None:
    response, body = half_closed(chunked, LONG | {"prompt": [7] * 700, "stream": True})
    assert response.status == 200 and body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_is_noticed_before_any_token(chunked: Served, stream: bool) -> None:
    vanish(chunked, PATH, LONG | {"stream": stream})


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_after_half_closing_is_noticed(slow: Served, stream: bool) -> None:
    fields = REPLY | {"max_tokens": 3000, "stream": stream}
    with posted(slow, PATH, fields) as connection:
        assert becomes(lambda: slow.host.snapshot().running == 1)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1)
    assert slow.becomes_idle()


def test_http_1_0_has_no_harmless_probe(slow: Served) -> None:
    body = json.dumps(REPLY | {"max_tokens": 3000}).encode()
    head = f"POST {PATH} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", slow.port)) as connection:
        connection.sendall(head.encode() + body)
        assert becomes(lambda: slow.host.snapshot().running == 1)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert slow.becomes_idle()


def test_half_a_request_is_not_answered(slow: Served) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", slow.port)) as connection:
        connection.sendall(head.encode())
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_an_idle_connection_is_closed(slow: Served) -> None:
    with socket.create_connection(("127.0.0.1", slow.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = HTTPResponse(connection)
        response.begin()
        assert response.read() and not response.will_close
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
