"""Many clients at once: no reply is lost or mixed up, also if clients disconnect or read slowly."""

import asyncio
import itertools
import socket
import threading
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.api.config import EngineConfig
from engine.api.events import Finished
from engine.api.params import SamplingParams
from engine.host.stream import Stream
from engine.start import start
from tests.cli.conftest import write_model
from tests.lazily import lazy
from tests.runner.small import alone
from tests.server.conftest import KEY, MODEL, Served, dry, half_read, serving, vanish
from tests.waiting import LIMIT, becomes

openai = lazy("openai")

HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def real(folder: Path) -> Iterator[Served]:
    """A tiny real model, with fewer blocks than two hundred requests need."""
    config = EngineConfig(model=str(folder), device="cpu", blocks=400, seed=0, max_running=64)
    with serving(start(config)) as served:
        yield served


@pytest.mark.soak
def test_two_hundred_streams_on_a_real_model(real: Served, folder: Path) -> None:
    async def one(client: Any, n: int) -> tuple[str, int]:
        stream = await client.completions.create(
            model=MODEL,
            prompt=[5 + n % 200, 7 + n // 200, 11],
            max_tokens=3 + n % 5,
            seed=n,
            temperature=0.9,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        text, tokens = "", 0
        async for chunk in stream:
            text += "".join(choice.text for choice in chunk.choices)
            tokens += chunk.usage.completion_tokens if chunk.usage else 0
        return text, tokens

    async def all_of_them() -> list[tuple[str, int]]:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=60, limits=limits) as _,
            openai.AsyncOpenAI(api_key=KEY, base_url=f"{real.url}/v1", timeout=60, max_retries=0) as client,
        ):
            return await asyncio.gather(*(one(client, n) for n in range(200)))

    found = asyncio.run(all_of_them())
    for n, (text, tokens) in enumerate(found):
        assert tokens == 3 + n % 5
        if n % 40 == 0:  # the oracle is slow
            params = SamplingParams(seed=n, temperature=0.9, max_tokens=tokens, ignore_eos=True)
            assert text == alone(folder, [5 + n % 200, 7 + n // 200, 11], params).text
    assert real.becomes_idle()


def test_two_hundred_clients_that_disconnect_leave_nothing() -> None:
    with serving(dry(rate=20, max_running=256)) as served:
        clients = [half_read(served, n) for n in range(200)]
        for client in clients:
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert becomes(lambda: served.host.snapshot().running == 200)
        assert served.blocks_in_use() >= 200
        ended: list[str] = []
        served.engine.bus.subscribe(
            lambda event: ended.append(event.finish) if isinstance(event, Finished) else None
        )
        for client in clients:
            client.close()
        assert served.becomes_idle()
        assert ended == ["aborted"] * 200, "a request ran to its end"


def test_a_client_that_waits_for_a_whole_reply_may_disconnect(slow: Served) -> None:
    asked = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "n": 3}
    vanish(slow, "/v1/completions", asked, replies=3)


def test_a_client_may_disconnect_during_submission(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the prompts are being submitted to the engine when the client disconnects."""
    submit, allowed, asked = slow.host.submit, threading.Event(), itertools.count()

    def late(*args: Any, **more: Any) -> Stream:
        if next(asked):
            assert allowed.wait(LIMIT)
        return submit(*args, **more)

    monkeypatch.setattr(slow.host, "submit", late)
    assert slow.becomes_idle()
    before = slow.host.snapshot().finished
    client = half_read(slow, 0, prompt=["a", "b", "c"])
    assert becomes(lambda: next(copy(asked)) == 3)
    client.close()
    assert becomes(lambda: slow.state.gate.in_flight == 0)
    allowed.set()
    assert becomes(lambda: slow.host.snapshot().finished == before + 3)
    assert slow.becomes_idle()


def test_slow_readers_do_not_block_others() -> None:
    with serving(dry(block_size=256), buffer=16384) as served:
        sleepers = [half_read(served, n, 16384, logprobs=5) for n in range(3)]
        assert becomes(lambda: served.host.snapshot().finished == 3)
        assert served.state.gate.in_flight == 3  # the text waits for the readers
        with served.client() as client:
            for _ in range(5):
                answer = client.post("/v1/completions", json={"prompt": "quick", "max_tokens": 20})
                assert answer.json()["usage"]["completion_tokens"] > 0
        for sleeper in sleepers:
            received = b""
            while b"[DONE]" not in received[-50:]:
                part = sleeper.recv(65536)
                assert part
                received += part
            assert b'"completion_tokens":3000,' in received
            sleeper.close()
        assert served.becomes_idle()


def test_a_full_queue_gives_a_retry_after() -> None:
    with serving(dry(rate=50), in_flight=4, per_key=3) as served, served.client() as client:
        body: dict[str, Any] = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
        held = [half_read(served, n) for n in range(3)]
        assert becomes(lambda: served.state.gate.in_flight == 3)
        mine = client.post("/v1/completions", json=body)
        assert mine.status_code == 429
        assert int(mine.headers["retry-after"]) >= 1
        assert mine.json()["error"]["type"] == "rate_limit_error"
        for one in held:
            one.close()
        assert served.becomes_idle()
        assert client.post("/v1/completions", json=body | {"max_tokens": 2}).status_code == 200


def test_a_full_engine_gives_a_retry_after() -> None:
    with (
        serving(dry(rate=50, max_running=1, max_waiting=1), in_flight=100) as served,
        served.client() as client,
    ):
        held = [half_read(served, 0)]
        assert becomes(lambda: served.host.snapshot().running == 1)
        held.append(half_read(served, 1))
        assert becomes(lambda: served.host.snapshot().waiting == 1)
        answer = client.post("/v1/completions", json={"prompt": "x"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert served.state.gate.in_flight == 2
        for one in held:
            one.close()
        assert served.becomes_idle()


def test_more_choices_than_a_key_may_have_are_refused() -> None:
    with serving(dry(), in_flight=2, per_key=2) as small, small.client() as client:
        wants = (("n", 3), ("best_of", 3), ("num_beams", 3), ("prompt", ["x"] * 3))
        for name, value in wants:
            answer = client.post("/v1/completions", json={"prompt": "x", name: value})
            assert answer.status_code == 400  # a retry would not help
            error = answer.json()["error"]
            assert error["param"] == name
            assert error["message"] == f"{name}: asks for 3 choices at once, and a key may have at most 2"
        embed = client.post("/api/embed", json={"model": MODEL, "input": ["x"] * 3}).json()["error"]
        assert embed.startswith("input: asks for 3 choices")
        assert small.state.gate.in_flight == 0


def test_a_disconnect_within_a_body_is_not_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    others = {*served.server.server_state.tasks}  # of replies that other tests left running
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            connection.sendall(head.encode())
    with served.client() as client:
        assert client.get("/v1/models").status_code == 200
    assert becomes(lambda: served.server.server_state.tasks <= others)
    assert caplog.messages == []
