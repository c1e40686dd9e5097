"""A prompt that is too long: the error names the client's field, and says what the client can do."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import MODEL, dry, serving, user

WORDS = "word " * 100
REPLIES = "/engine/replies"


@pytest.fixture(scope="module")
def small() -> Iterator[httpx.Client]:
    with serving(dry(max_context=64)) as one, one.client() as client:
        yield client


@pytest.mark.parametrize(
    ("route", "field", "body"),
    [
        ("/v1/chat/completions", "messages", {"messages": user(WORDS)}),
        ("/v1/chat/completions", "messages", {"messages": user("word " * 100_000)}),
        ("/v1/completions", "prompt", {"prompt": WORDS}),
        ("/v1/responses", "input", {"input": WORDS}),
        ("/v1/responses", "input", {"input": WORDS, "stream": True}),
        ("/v1/embeddings", "input", {"input": WORDS}),
        (REPLIES, "prompt", {"prompt": WORDS}),
    ],
)
def test_the_field_and_what_the_client_can_do(
    small: httpx.Client, route: str, field: str, body: dict[str, Any]
) -> None:
    answer = small.post(route, json=body if route == REPLIES else {"model": MODEL, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "context_length_exceeded")
    assert error["message"].endswith("tokens; this model takes 63. Shorten the prompt")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/api/chat", {"messages": user(WORDS)}),
        ("/api/generate", {"prompt": WORDS}),
        ("/v1/messages", {"messages": user(WORDS), "max_tokens": 1}),
    ],
)
def test_other_apis(small: httpx.Client, route: str, body: dict[str, Any]) -> None:
    error = small.post(route, json={"model": MODEL, **body}).json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.endswith("takes 63. Shorten the prompt")


@pytest.mark.parametrize(
    ("route", "field", "body"),
    [
        ("/v1/responses", "max_output_tokens", {"input": "word " * 20}),
        ("/v1/chat/completions", "max_completion_tokens", {"messages": user("word")}),
        ("/v1/chat/completions", "max_tokens", {"messages": user("word")}),
        ("/v1/completions", "max_tokens", {"prompt": "word " * 20}),
        (REPLIES, "max_tokens", {"prompt": "word " * 20}),
    ],
)
def test_a_long_reply_is_blamed_on_the_clients_name_for_it(
    small: httpx.Client, route: str, field: str, body: dict[str, Any]
) -> None:
    most = {"params": {field: 60}} if route == REPLIES else {field: 60}
    error = small.post(route, json={**body, **most}).json()["error"]
    assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    assert f"lower {field} to " in error["message"]


def test_a_reply_shorter_than_its_least_is_refused_under_that_name_too(small: httpx.Client) -> None:
    body = {"messages": user("word"), "min_tokens": 9, "max_completion_tokens": 2}
    error = small.post("/v1/chat/completions", json=body).json()["error"]
    assert error["message"] == "min_tokens: 9 is more than max_completion_tokens (2)"


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ({"max_context": 64}, "raise max_context"),
        ({"blocks": 4}, "give the KV cache more blocks"),
        ({}, "choose a larger model"),
    ],
)
def test_a_screen_of_its_own_reads_how_the_engine_takes_more(given: dict[str, int], way: str) -> None:
    with serving(dry(**given)) as one, one.client() as client:
        engine = client.post(REPLIES, json={"prompt": "word " * 60_000}).json()["engine"]
    assert engine["text"].endswith(f"Shorten the prompt or {way}")


def test_an_error_does_not_name_the_folder_of_the_model(small: httpx.Client) -> None:
    body = {"prompt": [10**6], "max_tokens": 1}
    message = small.post("/v1/completions", json=body).json()["error"]["message"]
    assert "out of range: this model has tokens 0 to" in message
