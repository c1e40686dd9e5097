"""Requests that arrive together: the engine gets the first of them while the server reads the others."""

import asyncio
import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from engine.server.generation import Generation
from engine.server.http.turns import Turns
from tests.server.conftest import KEY, Served, dry, serving, user

MANY = 5
BODIES = {
    "/v1/completions": {"prompt": [5, 7, 11], "max_tokens": 1},
    "/v1/chat/completions": {"messages": user("hi"), "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": user("hi"), "max_tokens": 1, "model": "test-model"},
    "/api/chat": {"messages": user("hi"), "model": "test-model", "options": {"num_predict": 1}},
}


def posted_together(
    served: Served,
    path: str,
    on_read: Callable[[], None] = lambda: None,
    leave: Event | None = None,
    body: Any = None,
) -> list[int]:
    """Call the application for several requests at once, as uvicorn does. Returns the status codes.

    `leave`: once it is set, the clients disconnect.
    """
    app, loop = served.server.config.app, served.state.engine._loop
    content = json.dumps((body or BODIES[path]) | {"stream": True}).encode()
    codes: list[int] = []

    async def one() -> None:
        sent = False

        async def receive() -> Any:
            nonlocal sent
            if sent and leave is not None and leave.is_set():
                return {"type": "http.disconnect"}
            if sent:
                await asyncio.Event().wait()  # until the response has ended
            sent = True
            on_read()
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                codes.append(message["status"])

        headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {KEY}".encode())]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path}
        scope |= {"headers": headers, "query_string": b"", "client": None, "server": None, "scheme": "http"}
        await app(scope, receive, send)  # type: ignore[operator]

    async def together() -> None:
        await asyncio.gather(*(one() for _ in range(MANY)))

    asyncio.run_coroutine_threadsafe(together(), loop).result(30)
    return codes


@pytest.mark.parametrize("path", BODIES)
def test_a_request_is_submitted_before_the_next_one_is_read(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    posted_together(served, path)  # what only the first request of a server asks for
    order: list[str] = []
    submit = served.state.engine.submit

    def submitting(*given: Any, **more: Any) -> Any:
        order.append("submitted")
        return submit(*given, **more)

    monkeypatch.setattr(served.state.engine, "submit", submitting)
    assert posted_together(served, path, lambda: order.append("read")) == [200] * MANY
    assert order == ["read", "submitted"] * MANY


def test_a_client_that_leaves_before_its_request_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has the request by then, and ends it."""
    with serving(dry(rate=50)) as served:
        begin, leave = Generation.begin, Event()

        def begin_and_leave(run: Generation) -> Generation:
            leave.set()
            return begin(run)

        monkeypatch.setattr(Generation, "begin", begin_and_leave)
        body = {"prompt": [5, 7, 11], "max_tokens": 3000, "ignore_eos": True}
        assert posted_together(served, "/v1/completions", leave=leave, body=body) == [499] * MANY
        assert served.becomes_idle()


def test_requests_begin_in_order_and_are_answered_while_others_wait() -> None:
    happened: list[tuple[str, int]] = []

    async def request(turns: Turns, number: int) -> None:
        await turns.begin()
        happened.append(("begins", number))
        await asyncio.sleep(0)
        happened.append(("ends", number))

    async def all_of_them() -> None:
        turns = Turns()
        tasks = [asyncio.create_task(request(turns, number)) for number in range(20)]
        await asyncio.sleep(0)
        tasks[7].cancel()  # while it waits
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_of_them())
    others = [number for number in range(20) if number != 7]
    assert [number for what, number in happened if what == "begins"] == others
    assert happened.index(("ends", 0)) < happened.index(("begins", 8))
    assert happened.index(("ends", 8)) < happened.index(("begins", 19))


def test_a_request_alone_does_not_wait() -> None:
    async def alone() -> None:
        turns = Turns()
        for _ in range(3):
            with pytest.raises(StopIteration):
                turns.begin().send(None)
            for _ in range(3):
                await asyncio.sleep(0)

    asyncio.run(alone())
