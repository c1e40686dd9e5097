"""All routes answer alike in each state of the server: the same headers, and errors in their API's form."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from engine.host.thread import EngineThread
from engine.server.http.early import EarlyApplication
from tests.server.conftest import KEY, Served, dry, serving
from tests.server.connections.test_loading import starting
from tests.waiting import LIMIT

SITE = "http://localhost:3000"
HEADERS = {"Authorization": f"Bearer {KEY}", "Origin": SITE}
BY_BROWSERS = {
    "access-control-allow-origin": SITE,
    "access-control-expose-headers": "retry-after, x-request-id",
}
METHODS = ("GET", "HEAD", "POST", "DELETE")


def asked(served: Served) -> Iterator[tuple[str, str]]:
    """Each method of each route, and some that there are not."""
    routes = served.server.config.app.built.routes  # type: ignore[union-attr]
    for route in routes:
        if isinstance(route, Route):
            path = route.path.replace("{id:path}", "x").replace("{id}", "x").replace("{verb}", "abort")
            yield from ((method, path) for method in sorted(route.methods or ()) if method in METHODS)
    yield from (("GET", "/none"), ("PUT", "/v1/models"), ("POST", "/health"))


def check(answer: httpx.Response, path: str) -> None:
    headers = answer.headers
    assert len(headers.get_list("x-request-id")) == 1, path
    assert {name: headers.get(name) for name in BY_BROWSERS} == BY_BROWSERS, path
    if answer.status_code < 400 or answer.request.method == "HEAD":
        return
    answer.read()
    assert headers["content-type"] == "application/json", path
    record: Any = json.loads(answer.text)
    if path == "/health" and answer.status_code == 503:
        assert set(record) <= {"status", "doing", "share", "seconds"}
        return
    if path.startswith("/v1/messages"):
        assert record["type"] == "error" and set(record["error"]) == {"type", "message"}, path
    elif path.startswith("/api/"):
        assert list(record) == ["error"] and isinstance(record["error"], str), path
    else:
        assert set(record) == {"error", "engine"}, path
        assert set(record["error"]) == {"message", "type", "param", "code"}, path
    if "shutting down" in str(record["error"]):
        assert headers["retry-after"] == "5", path


def ask_all(served: Served) -> set[int]:
    found = set()
    with served.client(headers=HEADERS) as client:
        for method, path in asked(served):
            given = {"json": {}} if method == "POST" else {}
            with client.stream(method, path, **given) as answer:
                check(answer, path)
                found.add(answer.status_code)
    return found


def test_of_an_engine_that_is_ready_dead_or_at_its_end() -> None:
    with serving(dry(), origins=(SITE,)) as served:
        assert {200, 400, 404, 405} <= ask_all(served)
        with served.client(headers={"Origin": SITE}) as stranger:
            check(answer := stranger.get("/v1/models"), "/v1/models")
            assert answer.status_code == 401
        served.host.close()
        assert 503 in ask_all(served)
        with served.client(headers=HEADERS) as client:
            assert client.get("/health").json() == {"status": "dead"}
            served.state.drain.begun = True
            ending = client.get("/health")
            assert (ending.json(), ending.headers["retry-after"]) == ({"status": "draining"}, "5")
        assert ask_all(served) == {503, 405}
        served.state.drain.begun = False


def test_of_an_engine_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    may_import, build = threading.Event(), EarlyApplication._build

    def build_late(early: EarlyApplication) -> Any:
        assert may_import.wait(LIMIT)
        return build(early)

    monkeypatch.setattr(EarlyApplication, "_build", build_late)
    with starting(origins=(SITE,)) as (startup, _, client), ThreadPoolExecutor(2) as pool:
        for answer in (client.get("/health"), client.head("/health")):  # of a program, not a page
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.headers["x-request-id"]
        assert client.get("/health", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
        page = pool.submit(client.get, "/health", headers=HEADERS)
        may_import.set()
        check(page.result(), "/health")
        assert page.result().json()["status"] == "loading"
        waiting = pool.submit(client.get, "/v1/models", headers=HEADERS)
        check(client.get("/health", headers=HEADERS), "/health")
        host = EngineThread(dry())
        startup.host.set_result(host)
        check(waiting.result(), "/v1/models")
        assert client.get("/health").json() == {"status": "ready"}
    host.close()
