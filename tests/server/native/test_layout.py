"""Replies that the server keeps for disconnected screens, found by tag, until they are read."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.conftest import KEY, Served, dry, serving
from tests.waiting import becomes

SHORT = {"max_tokens": 3, "ignore_eos": True}


def begin(client: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = client.post("/engine/replies", json={"prompt": "tell me", "params": SHORT, **more})
    assert answer.status_code == 201, answer.text
    record: dict[str, Any] = answer.json()
    return record


def tagged(client: httpx.Client, tag: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/engine/replies", params={"tag": tag}).json()["replies"]
    return found


def test_a_tag_names_one_reply(client: httpx.Client, served: Served) -> None:
    assert served.becomes_idle()
    finished = served.host.snapshot().finished
    first, again = (begin(client, tag="once", keep=True) for _ in range(2))
    assert first["id"] == again["id"]
    [found] = tagged(client, "once")
    assert found["id"] == first["id"]
    assert becomes(lambda: tagged(client, "once")[0]["lasted"] is not None)
    [ended] = tagged(client, "once")
    assert 0 < ended["first"] <= ended["lasted"] <= ended["age"]
    assert served.host.snapshot().finished == finished + 1
    assert tagged(client, "never") == []
    client.delete(f"/engine/replies/{first['id']}")
    assert begin(client, tag="once")["id"] != first["id"]


def test_a_tag_is_free_again_after_a_refused_request(client: httpx.Client) -> None:
    refused = {"prompt": "tell me", "params": {"max_tokens": 10**6}, "tag": "twice"}
    assert client.post("/engine/replies", json={**refused, "prompt": "long " * 50_000}).status_code == 400
    assert begin(client, tag="twice")["tag"] == "twice"


def test_a_tag_belongs_to_its_key() -> None:
    other = "sk-other-0123456789abcdef"
    with serving(dry(), keys=(KEY, other)) as served, served.client() as client:
        mine = begin(client, tag="same")
        with served.client(headers={"Authorization": f"Bearer {other}"}) as stranger:
            assert tagged(stranger, "same") == []
            assert begin(stranger, tag="same")["id"] != mine["id"]
            assert stranger.post(f"/engine/replies/{mine['id']}/fork", json={}).status_code == 404


def test_a_kept_reply_stays_until_it_is_read() -> None:
    with serving(dry(), kept_seconds=0.05) as served, served.client() as client:
        kept, other = begin(client, keep=True, tag="kept"), begin(client, tag="other")
        assert becomes(lambda: tagged(client, "other") == [])
        assert tagged(client, "kept")[0]["finish"] == "length"
        assert client.get(f"/engine/replies/{kept['id']}").text.endswith('event: end\ndata: {"v":1}\n\n')
        assert becomes(lambda: tagged(client, "kept") == [])
        assert client.get(f"/engine/replies/{other['id']}").status_code == 404


def test_a_reply_that_has_ended_cannot_be_forked(client: httpx.Client, served: Served) -> None:
    reply = begin(client)
    assert becomes(lambda: served.state.gate.in_flight == 0)
    answer = client.post(f"/engine/replies/{reply['id']}/fork", json={"tag": "late"})
    assert answer.status_code == 404
    assert client.post("/engine/replies/none/fork", json={}).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("layout", {"prompt": 5}, 400),
        ("layout", {}, 400),
        ("layout", {"prompt": [{"role": "user"}]}, 400),
        ("texts", {"tokens": [-1]}, 400),
        ("texts", {"tokens": [1], "before": []}, 400),
        ("switches/prefix_cache", {"on": "yes"}, 400),
        ("switches/warp", {"on": True}, 400),
    ],
)
def test_bad_bodies_are_refused(client: httpx.Client, path: str, body: Any, status: int) -> None:
    assert client.post(f"/engine/{path}", json=body).status_code == status


def test_long_texts_do_not_block_other_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    may, begun = threading.Event(), threading.Semaphore(0)

    def texts(tokens: Any, after: Any) -> list[str]:
        begun.release()
        assert may.wait(20)
        return []

    monkeypatch.setattr(served.host, "texts", texts)
    with served.client() as client, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(client.post, "/engine/texts", json={"tokens": [5]}) for _ in range(6)]
        assert all(begun.acquire(timeout=20) for _ in asked)
        assert client.get("/health").status_code == 200
        may.set()
        assert {each.result(20).status_code for each in asked} == {200}
