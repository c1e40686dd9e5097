"""A full server: every route says when to retry, no reply is lost, and a free place is used at once."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from engine.api.errors import BadParams
from engine.server.http.auth import NO_KEY
from engine.server.http.errors import ApiError
from engine.server.http.limits import ConcurrencyLimiter
from tests.cases import one_row_of
from tests.server.conftest import KEY, MODEL, Served, dry, half_read, serving, user
from tests.waiting import becomes, tick

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": user("x")}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"model": MODEL, "messages": user("x"), "max_tokens": 5}),
    ("/v1/embeddings", {"input": "x"}),
    ("/api/chat", {"model": MODEL, "messages": user("x")}),
    ("/api/generate", {"model": MODEL, "prompt": "x"}),
    ("/api/embed", {"model": MODEL, "input": "x"}),
    ("/engine/replies", {"prompt": "x"}),
]


@contextmanager
def filled(**config: Any) -> Iterator[Served]:
    """Yield a server that has no place left: three streams have all of them."""
    with serving(dry(rate=50, max_running=2, max_waiting=1), **config) as served, ExitStack() as held:
        for n in range(3):
            held.enter_context(half_read(served, n))
            assert becomes(lambda n=n: served.host.snapshot().running == min(n + 1, 2))
        assert becomes(lambda: served.host.snapshot().waiting == 1)
        yield served


@pytest.fixture(scope="module")
def full_engine() -> Iterator[Served]:
    with filled(in_flight=100) as one:
        yield one


@pytest.fixture(scope="module")
def full_gate() -> Iterator[Served]:
    with filled(in_flight=3) as one:
        yield one


@pytest.fixture(scope="module")
def full_key() -> Iterator[Served]:
    with filled(in_flight=4, per_key=3) as one:
        yield one


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize(
    ("stream", "full", "status", "words"),
    one_row_of(
        2,
        (
            (stream, *full)
            for full in (
                ("full_engine", 503, "1 requests are waiting"),
                ("full_gate", 503, "3 choices are in flight, and the server takes 3; retry later"),
                ("full_key", 429, "this key has 3 choices in flight, and may have 3; retry when some have"),
            )
            for stream in (False, True)[:: 1 if full[0] != "full_gate" else -1]
        ),
    ),
)
def test_who_is_refused_is_told_when_to_retry(
    request: pytest.FixtureRequest,
    full: str,
    status: int,
    words: str,
    stream: bool,
    path: str,
    body: dict[str, Any],
) -> None:
    served: Served = request.getfixturevalue(full)
    streamed = {} if path in ("/v1/embeddings", "/api/embed", "/engine/replies") else {"stream": stream}
    with served.client() as client:
        answer = client.post(path, json=body | streamed)
    assert answer.status_code == status, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert words in answer.text
    assert served.host.snapshot().waiting == 1


def test_all_who_retry_are_answered_once() -> None:
    """Thirty clients for four places, each until it gets its reply."""
    with serving(dry(rate=500, max_running=2, max_waiting=2), in_flight=4, per_key=4) as served:

        async def one(client: httpx.AsyncClient, n: int) -> tuple[int, str]:
            refused = 0
            while True:
                answer = await client.post("/v1/completions", json={"prompt": f"n{n}", "max_tokens": 5})
                if answer.is_success:
                    return refused, answer.json()["choices"][0]["text"]
                assert answer.status_code in (429, 503)
                refused += 1
                await tick()

        async def all_of_them() -> list[tuple[int, str]]:
            headers = {"Authorization": f"Bearer {KEY}"}
            async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=60) as client:
                return await asyncio.gather(*(one(client, n) for n in range(30)))

        found = asyncio.run(all_of_them())
        assert any(refused for refused, _ in found)
        assert served.becomes_idle()
        assert served.host.snapshot().finished == 30
        with served.client() as client:
            for n in range(0, 30, 5):
                again = client.post("/v1/completions", json={"prompt": f"n{n}", "max_tokens": 5}).json()
                assert again["choices"][0]["text"] == found[n][1]


def test_a_free_place_is_used_at_once() -> None:
    with filled(in_flight=3, drain=0.1) as served, served.client() as client:
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 503
        [running, *_] = served.host.snapshot().requests
        assert client.post(f"/engine/requests/{running.id}/abort").is_success
        assert becomes(lambda: served.state.gate.in_flight == 2)
        assert client.post("/engine/replies", json={"prompt": "x"}).status_code == 201


def test_a_server_without_keys_names_none() -> None:
    gate = ConcurrencyLimiter(4, 2)
    with pytest.raises(BadParams, match="3 choices at once, and a server without keys may have at most 2"):
        gate.enter(NO_KEY, 3, "n")
    gate.enter(NO_KEY, 2, "n")
    with pytest.raises(ApiError, match=r"^this server, without keys, has 2 choices in flight"):
        gate.enter(NO_KEY, 1, "prompt")
