"""Changing the schemes of weights and cache over HTTP, with the real model in its own process."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.api.config import EngineConfig
from engine.api.events import Event, Quantized, Quantizing, Recached
from engine.api.snapshot import Snapshot
from engine.api.wire import decode_event, decode_snapshot
from engine.host.process import EngineProcess
from tests.server.conftest import KEY, PLAIN, listening, user
from tests.server.native.test_events import notes
from tests.waiting import becomes

CONFIG = EngineConfig(model="pocket", device="cpu", threads=1, blocks=400, seed=5)
GREEDY = {"model": "test-model", "temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    host = EngineProcess(CONFIG, tmp_path_factory.mktemp("state") / "engine.log")
    with listening(host) as (port, _):
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", verify=PLAIN, headers=headers, timeout=30
        ) as one:
            yield one


def shot(client: httpx.Client) -> Snapshot:
    return decode_snapshot(client.get("/engine/snapshot").json())


def settled(client: httpx.Client, scheme: str) -> bool:
    return becomes(lambda: (found := shot(client)).quantization == scheme and found.change is None)


def reply(client: httpx.Client) -> str:
    body = GREEDY | {"messages": user("What is a block?")}
    text: str = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    return text


def forms(client: httpx.Client) -> set[tuple[str, str]]:
    """The forms in which steps were measured."""
    found = shot(client).form_times
    assert all(0 < each.seconds < 10 and 0 < each.steps < 32 for each in found)
    return {(each.weights, each.cache) for each in found}


def events_of_change(client: httpx.Client, path: str, scheme: str, until: type[Event]) -> list[Event]:
    """Request the change and return the events up to one of class `until`."""
    with client.stream("GET", "/events") as response:
        found = notes(response)
        assert client.post(path, json={"scheme": scheme}).is_success
        events: list[Event] = []
        while not events or not isinstance(events[-1], until):
            events.append(decode_event(next(found)[2]))
        return events


def refused(client: httpx.Client, path: str, body: Any) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def test_weights_change_and_change_back_while_a_reply_runs(client: httpx.Client) -> None:
    before = reply(client)
    body = {"prompt": "tell me", "params": {"max_tokens": 300, "ignore_eos": True}}
    running = client.post("/engine/replies", json=body).json()
    events = events_of_change(client, "/engine/quantization", "int4", Quantized)
    steps = [event for event in events if isinstance(event, Quantizing)]
    assert [event.done for event in steps] == sorted(event.done for event in steps)
    assert (steps[-1].done, events[-1].error) == (steps[-1].total, "")  # type: ignore[attr-defined]
    assert client.get("/engine").json()["quantization"] == "int4"
    assert [view.id for view in shot(client).requests] == [running["request"]], "the reply has ended"
    assert becomes(lambda: ("int4", "none") in forms(client))
    assert client.delete(f"/engine/replies/{running['id']}").status_code == 204
    assert client.post("/engine/quantization", json={"scheme": "none"}).status_code == 202
    assert settled(client, "none")
    assert reply(client) == before
    assert forms(client) >= {("none", "none"), ("int4", "none")}, "a form that was left keeps its times"


def test_a_change_is_cancelled(client: httpx.Client) -> None:
    with client.stream("GET", "/events") as response:
        found = notes(response)
        assert client.post("/engine/quantization", json={"scheme": "int4"}).status_code == 202
        assert client.post("/engine/quantization/cancel").status_code == 204
        events = (decode_event(data) for _, _, data in found)
        last = next(event for event in events if isinstance(event, Quantized))
    assert last.error in ("it was canceled", "")  # it may have finished before
    assert client.post("/engine/quantization", json={"scheme": "none"}).status_code == 202
    assert settled(client, "none")
    assert client.post("/engine/quantization/cancel").status_code == 204, (
        "cancelling without a change is an error"
    )


def test_the_cache_changes_while_no_reply_runs(client: httpx.Client) -> None:
    before, blocks = reply(client), shot(client).blocks.size
    [event] = events_of_change(client, "/engine/kv", "int8", Recached)
    assert isinstance(event, Recached) and event.blocks == blocks
    assert shot(client).kv_scheme == shot(client).kv_dtype == "int8"
    running = client.post("/engine/replies", json={"prompt": "tell me", "params": {"max_tokens": 300}}).json()
    assert "while requests are alive" in refused(client, "/engine/kv", {"scheme": "none"})
    assert becomes(lambda: forms(client) >= {("none", "none"), ("none", "int8")})
    client.delete(f"/engine/replies/{running['id']}")
    assert becomes(lambda: client.post("/engine/kv", json={"scheme": "none"}).status_code == 204)
    assert reply(client) == before


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        (
            "/engine/quantization",
            {"scheme": "int5"},
            "'int5': no scheme has that name; available: none, fp32",
        ),
        ("/engine/quantization", {"scheme": "fp8"}, "FP8 products need an NVIDIA GPU"),
        ("/engine/quantization", {"scheme": 8}, "scheme"),
        ("/engine/quantization", {}, "scheme"),
        ("/engine/kv", {"scheme": "int3"}, "unknown KV scheme 'int3'; available: none, int8, fp8, int4"),
        ("/engine/kv", {"scheme": "none", "when": "now"}, "when"),
    ],
)
def test_a_bad_scheme_is_refused_with_a_reason(
    client: httpx.Client, path: str, body: Any, problem: str
) -> None:
    assert problem in refused(client, path, body)
    assert shot(client).change is None
