"""A request's priority and deadline over every route, and the limit of priorities."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from engine.api.request import Request
from tests.server.conftest import KEY, MODEL, Served, dry, serving, user

HEADERS = {"Authorization": f"Bearer {KEY}"}
FIELDS = {"priority": -2, "deadline_ms": 250}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(dry(), max_priority=2) as served:
        yield served


def post(path: str, **body: Any) -> Callable[[Served, dict[str, Any]], dict[str, Any]]:
    """A call that returns the body of the error, or {}."""

    def call(served: Served, fields: dict[str, Any]) -> dict[str, Any]:
        with served.client() as client:
            answer = client.post(path, json=body | fields)
        return {} if answer.is_success else answer.json()["error"]

    return call


def over_websocket(served: Served, fields: dict[str, Any]) -> dict[str, Any]:
    with connect(f"ws://127.0.0.1:{served.port}/ws", additional_headers=HEADERS) as socket:
        socket.send(json.dumps({"type": "generate", "id": "a", "prompt": "hi", **fields}))
        answer = json.loads(socket.recv())
    return {} if answer["type"] == "started" else answer["error"]


def over_ollama(served: Served, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": "hi", "stream": False, "options": {"num_predict": 1, **fields}}
    with served.client() as client:
        answer = client.post("/api/generate", json=body)
    return {} if answer.is_success else {"message": answer.json()["error"].removeprefix("options.")}


CALLS = {
    "chat": post("/v1/chat/completions", model=MODEL, messages=user("hi"), max_tokens=1),
    "completion": post("/v1/completions", model=MODEL, prompt="hi", max_tokens=1),
    "messages": post("/v1/messages", model=MODEL, messages=user("hi"), max_tokens=1),
    "replies": post("/engine/replies", prompt="hi", params={"max_tokens": 1}),
    "ollama": over_ollama,
    "websocket": over_websocket,
}


@pytest.mark.parametrize("route", CALLS)
def test_every_route_passes_priority_and_deadline_to_the_engine(
    served: Served, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Request] = []
    add = served.engine.scheduler.add

    def keep(request: Request) -> None:
        added.append(request)
        add(request)

    monkeypatch.setattr(served.engine.scheduler, "add", keep)
    assert CALLS[route](served, FIELDS) == CALLS[route](served, {}) == {}
    first, usual = added
    assert first.deadline is not None
    assert (first.priority, first.deadline - first.arrived) == (-2, pytest.approx(0.25))
    assert (usual.priority, usual.deadline) == (0, None)


@pytest.mark.parametrize("route", CALLS)
def test_a_priority_above_the_limit_is_refused(served: Served, route: str) -> None:
    error = CALLS[route](served, {"priority": -3})
    assert error["message"] == "priority must be at least -2 on this server, got -3; lower values run first"
    assert error.get("param", "priority") == "priority"


@pytest.mark.parametrize("value", [-1, 1e12, "soon", True])
@pytest.mark.parametrize("route", CALLS)
def test_a_bad_deadline_is_refused(served: Served, route: str, value: object) -> None:
    assert CALLS[route](served, {"deadline_ms": value})["message"].startswith("deadline_ms: ")


def test_a_request_of_higher_priority_does_not_wait_for_a_full_batch() -> None:
    with serving(dry(policy="priority", max_running=1, rate=100.0)) as served, served.client() as client:
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as slow:
            lines = slow.iter_lines()
            next(lines)  # it runs
            urgent = client.post(
                "/v1/completions", json={**body, "max_tokens": 2, "priority": -1, "stream": False}
            )
            assert urgent.json()["usage"]["completion_tokens"] == 2
            assert served.engine.scheduler.preemptions == 1
            assert served.engine.scheduler.requests, "the other reply has not ended"
