"""What ended a reply, its tokens, and the ids around a response."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.api.events import Quantized, Recached, Restarted
from engine.text.tokenizer import Tokenizer
from tests.server.conftest import KEY, MODEL, Served, dry, saying, serving, user

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = "one two three four"
ROUTES = [(CHAT, {"messages": user("hi")}), (TEXT, {"prompt": "hi", "max_tokens": 50})]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@pytest.fixture(scope="module")
def words(folder: Path) -> Iterator[httpx.Client]:
    """A model that says four words."""
    with serving(saying(folder, WORDS)) as served, served.client() as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(words: httpx.Client, folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def whole(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a whole response, and its first choice with the text under `text`."""
    response = client.post(path, json=body)
    assert response.is_success, response.text
    record = response.json()
    [choice] = record["choices"]
    return record, choice if path == TEXT else choice | {"text": choice["message"]["content"]}


def streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.is_success
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_the_stop_reason(words: httpx.Client, tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    token = tokenizer.encode("w")[0]
    for fields, text, finish, reason in (
        ({}, WORDS, "stop", None),
        ({"max_tokens": 3}, "one", "length", None),
        ({"stop": ["thr", "two"]}, "one ", "stop", "two"),
        ({"stop_token_ids": [token]}, "one t", "stop", token),
    ):
        _, choice = whole(words, path, body | fields)
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, finish, reason)
        chunks = streamed(words, path, body | fields)
        last = chunks[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == (finish, reason)
        assert not any(chunk["choices"][0].get("stop_reason") for chunk in chunks[:-1])


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_the_stop_may_be_part_of_the_text(
    words: httpx.Client, tokenizer: Tokenizer, path: str, body: dict[str, Any]
) -> None:
    included = body | {"include_stop_str_in_output": True}
    _, choice = whole(words, path, included | {"stop": "two"})
    assert (choice["text"], choice["stop_reason"]) == ("one two", "two")
    _, choice = whole(words, path, included | {"stop_token_ids": tokenizer.encode("w")})
    assert choice["text"] == "one tw"
    _, choice = whole(words, path, included)
    assert choice["text"] == WORDS, "the end token has no text"


@pytest.mark.parametrize("more", [{"n": 2, "best_of": 3}, {"num_beams": 2}])
def test_ranked_replies_have_a_stop_reason(words: httpx.Client, more: dict[str, Any]) -> None:
    response = words.post(TEXT, json={"prompt": "hi", "stop": "two", "seed": 1, "max_tokens": 9} | more)
    choices = response.json()["choices"]
    assert ("one ", "two") in [(choice["text"], choice["stop_reason"]) for choice in choices]


def test_the_tokens_of_a_chat(words: httpx.Client, tokenizer: Tokenizer) -> None:
    body = {"messages": user("hi"), "return_token_ids": True, "stop": "two"}
    prompt = tokenizer.encode("user: hi\nassistant:")
    record, choice = whole(words, CHAT, body)
    assert record["prompt_token_ids"] == prompt
    assert choice["token_ids"] == tokenizer.encode("one two")
    first, *later = streamed(words, CHAT, body)
    assert first["prompt_token_ids"] == prompt
    assert not any("prompt_token_ids" in chunk for chunk in later)
    tokens = [token for chunk in (first, *later) for token in chunk["choices"][0]["token_ids"]]
    assert tokens == choice["token_ids"]
    record, choice = whole(words, CHAT, {"messages": user("hi")})
    assert "prompt_token_ids" not in record and "token_ids" not in choice


def test_the_tokens_of_completions(words: httpx.Client, tokenizer: Tokenizer) -> None:
    prompts = [[*map(int, tokenizer.encode(text))] for text in ("a", "bc")]
    body = {"prompt": prompts, "return_token_ids": True, "n": 2, "max_tokens": 50, "stop": "two"}
    reply = tokenizer.encode("one two")
    choices = words.post(TEXT, json=body).json()["choices"]
    assert [each["prompt_token_ids"] for each in choices] == [prompts[n // 2] for n in range(4)]
    assert [each["token_ids"] for each in choices] == [reply] * 4
    found: list[dict[str, list[int]]] = [{"token_ids": []} for _ in choices]
    for chunk in streamed(words, TEXT, body):
        [entry] = chunk["choices"]
        one = found[entry["index"]]
        one["token_ids"] += entry["token_ids"]
        if "prompt_token_ids" in entry:
            assert "prompt_token_ids" not in one, "the prompt came twice"
            one["prompt_token_ids"] = entry["prompt_token_ids"]
    assert found == [{name: each[name] for name in ("token_ids", "prompt_token_ids")} for each in choices]


def test_the_fingerprint_changes_with_the_scheme() -> None:
    body = {"prompt": "hi", "max_tokens": 2}
    with serving(dry()) as served, served.client() as client:
        first = whole(client, TEXT, body)[0]["system_fingerprint"]
        assert re.fullmatch("fp_[0-9a-f]{12}", first)
        chunks = streamed(client, CHAT, {"messages": user("hi"), "max_tokens": 2})
        assert {chunk["system_fingerprint"] for chunk in chunks} == {first}
        for change, same in (
            (Recached(1, 0.0, "int8", 9), False),
            (Recached(2, 0.0, "none", 9), True),
            (Quantized(3, 0.0, "int8", "none", 9, 1.0, ""), False),
            (Quantized(4, 0.0, "none", "int8", 9, 1.0, ""), True),
            (Quantized(5, 0.0, "int4", "none", 9, 1.0, "no memory"), True),
            (Quantized(6, 0.0, "int8", "none", 9, 1.0, ""), False),
            (Restarted(0, 0.0, 4.0), True),  # a new process has the scheme of the first start
        ):
            served.engine.bus.emit(change)
            assert (whole(client, TEXT, body)[0]["system_fingerprint"] == first) == same


def test_a_sane_request_id_comes_back(served: Served) -> None:
    with served.client() as client:
        for path, body in (*ROUTES, (TEXT, {"prompt": 5})):
            found = client.post(path, json=body, headers={"x-request-id": "req-7:a/b"})
            assert found.headers.get_list("x-request-id") == ["req-7:a/b"]
        for strange in ("", "a b", "x" * 129, '"'):
            found = client.post(TEXT, json={"prompt": "hi"}, headers={"x-request-id": strange})
            assert found.json()["id"] == f"cmpl-{found.headers['x-request-id']}"
        for path, body, start in (
            (TEXT, {"prompt": "hi"}, "cmpl-"),
            ("/v1/responses", {"input": "hi"}, "resp_"),
            ("/v1/messages", {"model": MODEL, "messages": user("hi"), "max_tokens": 3}, "msg_"),
        ):
            for stream in (False, True):
                found = client.post(path, json=body | {"stream": stream})
                assert f'"id":"{start}{found.headers["x-request-id"]}"' in found.text
        assert client.get("/health").headers["x-request-id"]
    refused = httpx.get(f"{served.url}/v1/models", headers={"authorization": f"Bearer {KEY}x"})
    assert refused.status_code == 401 and refused.headers["x-request-id"]


def test_tokens_that_a_reply_may_have(words: httpx.Client, tokenizer: Tokenizer) -> None:
    letters = tokenizer.encode("one")
    _, choice = whole(words, TEXT, {"prompt": "hi", "max_tokens": 9, "allowed_token_ids": letters})
    assert choice["text"] and set(choice["text"]) <= set("one")
    _, choice = whole(words, CHAT, {"messages": user("hi"), "max_tokens": 30, "bad_words": ["two"]})
    assert choice["text"].startswith("one tw") and "two" not in choice["text"]
    for fields, param in (
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": ["x"], "num_beams": 2}, "bad_words"),
    ):
        response = words.post(TEXT, json={"prompt": "hi", **fields})
        assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_cached_tokens_are_at_most_those_of_the_prompt(client: httpx.Client) -> None:
    """Of a reply that continues another one, tokens of the reply may be in the cache, too."""
    prompt, tokens = [7] * 40, [9] * 60
    client.post(TEXT, json={"prompt": [*prompt, *tokens], "max_tokens": 1})
    asked = {"prompt": prompt, "said": tokens, "max_tokens": 61, "ignore_eos": True}
    usage = client.post(TEXT, json=asked).json()["usage"]
    assert usage["prompt_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 40
