"""The engine's events and snapshots over SSE and a WebSocket."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from engine.api.wire import decode_event, decode_snapshot
from engine.server.native import event_history
from tests.server.conftest import KEY, Served, dry, serving
from tests.waiting import becomes

HEADERS = {"Authorization": f"Bearer {KEY}"}


def notes(response: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    """Yield the kind, id and data of each SSE message."""
    kind = id = ""
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        match name:
            case "event":
                kind = value
            case "id":
                id = value
            case "data":
                yield kind, id, json.loads(value)
                kind = id = ""


def complete(client: httpx.Client, prompt: str = "hi") -> None:
    assert client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2}).status_code == 200


def until_finished(found: Iterator[tuple[str, str, Any]]) -> list[tuple[str, Any]]:
    """Return the ids and events up to the end of a request."""
    events = []
    for kind, id, data in found:
        assert kind == "event", data
        events.append((id, decode_event(data)))
        if data["kind"] == "finished":
            return events
    raise AssertionError("the stream ended")


def test_events_arrive_in_order(served: Served, client: httpx.Client) -> None:
    assert served.becomes_idle()  # other tests' replies have ended, and their events have been sent
    with client.stream("GET", "/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = notes(response)
        complete(client)
        events = until_finished(found)
    kinds = [event.kind for _, event in events]
    assert kinds == ["queued", "admitted", "firsttoken", "finished"]
    numbers = [int(id.rpartition("-")[2]) for id, _ in events]
    assert numbers == list(range(numbers[0], numbers[0] + 4))


def test_a_reader_that_reconnects_misses_nothing(served: Served, client: httpx.Client) -> None:
    assert served.becomes_idle()
    with client.stream("GET", "/events") as response:
        complete(client)
        (last, first), *_ = until_finished(notes(response))
    complete(client)
    complete(client)
    with client.stream("GET", "/events", headers={"Last-Event-ID": last}) as response:
        found = notes(response)
        events = [event.kind for _ in range(3) for _, event in until_finished(found)]
    assert [first.kind, *events] == ["queued", "admitted", "firsttoken", "finished"] * 3


def test_a_gap_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_history, "KEPT", 6)
    with serving(dry()) as served, served.client() as client:
        with client.stream("GET", "/events") as response:
            complete(client)
            [(last, _), *_] = until_finished(notes(response))
        for _ in range(3):
            complete(client)
        assert becomes(lambda: served.state.events.count == 16)
        with client.stream("GET", "/events", headers={"Last-Event-ID": last}) as response:
            found = notes(response)
            assert next(found) == ("gap", "", {"missed": 9})  # 15 came after it, and 6 are kept
            assert len([next(found) for _ in range(6)]) == 6
        for stranger in ("other-3", "nonsense", "-", "other-99999999999999999999"):
            with client.stream("GET", "/events", headers={"Last-Event-ID": stranger}) as response:
                assert next(notes(response)) == ("gap", "", {"missed": None})


def test_a_slow_reader_gets_the_number_of_missed_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_history, "KEPT", 8)
    with serving(dry()) as served, served.client() as client:
        start = f"{served.state.boot}-0"
        for _ in range(4):
            complete(client)
        assert becomes(lambda: served.state.events.count == 16)
        with client.stream("GET", "/events", headers={"Last-Event-ID": start}) as response:
            assert next(notes(response)) == ("gap", "", {"missed": 8})


def test_snapshots_among_the_events(served: Served, client: httpx.Client) -> None:
    assert served.becomes_idle()
    with client.stream("GET", "/events?snapshots=0.05") as response:
        found = notes(response)
        shots = [
            decode_snapshot(data)
            for _, (kind, _, data) in zip(range(3), found, strict=False)
            if kind == "snapshot"
        ]
    assert len(shots) == 3
    assert shots[0].at < shots[1].at < shots[2].at
    for bad in ("0", "-1", "nan", "x"):
        assert client.get(f"/events?snapshots={bad}").status_code == 400


def test_the_same_over_a_websocket(served: Served, client: httpx.Client) -> None:
    assert served.becomes_idle()
    url = f"ws://127.0.0.1:{served.port}/ws/events"
    with connect(url, additional_headers=HEADERS) as socket:
        socket.send("what is this?")  # ignored
        complete(client)
        events = [json.loads(socket.recv(10)) for _ in range(4)]
    assert [decode_event(note["data"]).kind for note in events] == [
        "queued",
        "admitted",
        "firsttoken",
        "finished",
    ]
    with connect(f"{url}?last={events[0]['id']}&snapshots=5", additional_headers=HEADERS) as socket:
        again = [json.loads(socket.recv(10)) for _ in range(4)]
    assert [note["type"] for note in again] == ["event", "event", "event", "snapshot"]
    assert again[0] == events[1]
