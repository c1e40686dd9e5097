"""A model with several names: requests may use any of them, and responses carry the one that was used."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import Served, dry, serving, user

NAMES = ["first", "second", "org/third:8b"]


@pytest.fixture(scope="module")
def named() -> Iterator[Served]:
    with serving(dry(), name=NAMES[0], aliases=tuple(NAMES[1:])) as one:
        yield one


@pytest.fixture
def client(named: Served) -> Iterator[httpx.Client]:
    with named.client() as client:
        yield client


def test_all_names_are_listed(client: httpx.Client) -> None:
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == NAMES
    for name in NAMES:
        assert client.get(f"/v1/models/{name}").json()["id"] == name


@pytest.mark.parametrize(("asked", "told"), [(None, "first"), *zip(NAMES, NAMES, strict=True)])
def test_a_response_carries_the_requested_name(client: httpx.Client, asked: str | None, told: str) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": user("hi")}),
        ("/v1/completions", {"prompt": "hi"}),
    ):
        full: dict[str, Any] = {"model": asked, "max_tokens": 3, **body}
        assert client.post(path, json=full).json()["model"] == told
        lines = client.post(path, json=full | {"stream": True}).text.split("\n\n")
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert {chunk["model"] for chunk in chunks} == {told}
    assert client.post("/tokenize", json={"model": asked, "prompt": "hi"}).status_code == 200


def test_another_name_is_refused_with_all_names(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"model": "fourth", "prompt": "hi"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "this server serves 'first', 'second', 'org/third:8b'" in answer.json()["error"]["message"]
    assert client.get("/v1/models/fourth").status_code == 404


def test_status_and_metrics_use_the_first_name(client: httpx.Client) -> None:
    assert client.get("/engine").json()["model"] == "first"
    assert 'model_name="first"' in client.get("/metrics").text
