"""Long requests are refused, or parsed without blocking other clients."""

import gc
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from engine.server.config import MAX_PARTS
from engine.server.http import bodies
from engine.server.schema import Strict
from tests.cases import soak
from tests.server.conftest import KEY, MODEL, Served, dry, serving, user
from tests.server.requests.test_fields import CHAT, TEXT, refused

LONG = " ".join(["word"] * 20_000)
TOO_LONG = f"{LONG} {LONG}"


@contextmanager
def blocked_parsing(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Block the parsing of long JSON inside this block. The event is set when a parse has begun."""
    real, begun, go = bodies.parse_json, threading.Event(), threading.Event()

    def parse(text: str) -> Any:
        if len(text) > len(LONG):
            assert not gc.isenabled(), "a garbage collection would block all clients"
            begun.set()
            assert go.wait(20)
        return real(text)

    monkeypatch.setattr(bodies, "parse_json", parse)
    monkeypatch.setattr("engine.server.native.ws.parse_json", parse)
    try:
        yield begun
    finally:
        go.set()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (TEXT, {"prompt": LONG, "max_tokens": 1}),
        (CHAT, {"messages": user(LONG), "max_tokens": 1}),
        ("/engine/replies", {"prompt": LONG, "params": {"max_tokens": 1}}),
    ],
)
def test_others_are_answered_while_a_long_body_is_parsed(
    route: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(dry(max_context=2**16)) as served,
        served.client(timeout=15) as client,
        ThreadPoolExecutor(1) as other,
    ):
        with blocked_parsing(monkeypatch) as begun:
            answer: Future[httpx.Response] = other.submit(client.post, route, json=body)
            assert begun.wait(15)
            assert client.get("/health").status_code == 200
            assert client.post(TEXT, json={"prompt": "hi", "max_tokens": 1}).status_code == 200
            assert not answer.done()
        assert answer.result(20).status_code in (200, 201)
        assert gc.isenabled()


def test_others_are_answered_while_a_long_websocket_message_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(dry(max_context=2**16)) as served, served.client(timeout=15) as client:
        headers = {"Authorization": f"Bearer {KEY}"}
        with connect(f"ws://127.0.0.1:{served.port}/ws", additional_headers=headers) as socket:
            with blocked_parsing(monkeypatch) as begun:
                params = {"max_tokens": 1}
                socket.send(json.dumps({"type": "generate", "id": "a", "prompt": LONG, "params": params}))
                assert begun.wait(15)
                assert client.get("/health").status_code == 200
            kinds = [json.loads(socket.recv(15))["type"] for _ in range(2)]
            assert kinds == ["started", "deltas"]


def test_an_error_in_a_long_body_names_the_field(served: Served) -> None:
    with served.client() as client:
        error = refused(client.post(CHAT, json={"messages": user(LONG), "temperature": "warm"}))
        assert error["param"] == "temperature"
        error = refused(client.post(CHAT, json={"messages": [*user(LONG), {"role": "x", "content": ""}]}))
        assert error["param"] == "messages[1].role"
        error = refused(client.post(CHAT, json={"messages": user(LONG), "model": "another"}), 404)
        assert error["code"] == "model_not_found"
    assert gc.isenabled()


def test_json_of_too_many_parts_is_refused_early(served: Served) -> None:
    many = {"messages": [*user("hi")], "chat_template_kwargs": {"x": [[]] * MAX_PARTS}}
    with served.client() as client:
        assert "200000 lists and objects" in refused(client.post(CHAT, json=many))["message"]


def test_the_limit_of_a_body_is_an_option(served: Served) -> None:
    with serving(dry(max_context=2**16), max_body=len(LONG)) as small, small.client() as client:
        error = refused(client.post(TEXT, json={"prompt": LONG}), 413)
        assert f"at most {len(LONG)} bytes; start the server with a larger --max-body" in error["message"]
        assert client.post(TEXT, json={"prompt": LONG[: 2**16], "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (TEXT, {"prompt": TOO_LONG}),
        (CHAT, {"messages": user(TOO_LONG), "stream": True}),
        ("/engine/replies", {"prompt": TOO_LONG}),
        *soak(
            (CHAT, {"messages": user(TOO_LONG)}),
            ("/v1/responses", {"input": TOO_LONG}),
            ("/v1/messages", {"messages": user(TOO_LONG), "max_tokens": 1}),
            ("/api/chat", {"messages": user(TOO_LONG)}),
        ),
    ],
)
def test_a_refused_request_is_gone_without_a_garbage_collection(
    client: httpx.Client, route: str, body: dict[str, Any]
) -> None:
    """A server collects garbage rarely, and a large prompt is few objects."""
    client.get("/health")
    gc.collect()
    gc.disable()
    try:
        assert client.post(route, json={"model": MODEL, **body}).status_code == 400
        assert client.get("/health").status_code == 200  # the other request has ended
        assert not [each for each in gc.get_objects() if isinstance(each, Strict)]
    finally:
        gc.enable()
