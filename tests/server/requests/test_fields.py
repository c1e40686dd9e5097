"""Bad fields are refused, and the error names the field."""

import json
import tracemalloc
from typing import Any

import httpx
import pytest

from engine.api.errors import BadParams
from engine.api.params import SamplingParams
from engine.server.config import MAX_BODY, MAX_CHOICES, MAX_DEPTH
from engine.server.http.bodies import parse_json
from engine.server.http.errors import ApiError
from engine.server.openai.schema import CompletionRequest
from engine.server.schema import parsed
from engine.serving.limits import Limits
from tests.server.conftest import KEY, Served, raw, user

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"functions": []}, "functions"),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"continue_final_message": True}}, "chat_template_kwargs"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"stream_options": {"include_usage": True, "chunk": 1}}, "stream_options.chunk"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": MAX_CHOICES + 1}, "n"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 1.5}, "seed"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages[0].name"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": [1]}]}, "messages[0].tool_call_id"),
        (
            {"messages": [*user("a"), {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0]",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"model": 5}, "model"),
    ],
)
def test_a_chat_field_is_refused_by_its_name(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    error = refused(client.post(CHAT, json={"messages": user("hi"), **fields}))
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"echo": 1}, "echo"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1, "num_beams": 2}, "logprobs"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": ["a"] * 40, "n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_completion_field_is_refused_by_its_name(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    error = refused(client.post(TEXT, json={"prompt": "hi", **fields}))
    assert error["param"].startswith(param)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "prompt: must not be empty"),
        ({"prompt": [1, "a"]}, "prompt[1]: must be a whole number, got 'a'"),
        ({"prompt": [-1]}, "prompt[0]: must be at least 0, got -1"),
        ({"prompt": [[1], "a"]}, "prompt[1]: must be a list, got 'a'"),
        ({"prompt": [[1, -5]]}, "prompt[0][1]: must be at least 0, got -5"),
        ({"stop": ["a"] * 17}, "stop: must have at most 16 items"),
        ({"stop": ""}, "stop: must not be empty, got ''"),
        ({"suffix": "x"}, "suffix is not a known or supported field"),
        ({"max_tokens": True}, "max_tokens: must be a whole number, got true"),
        ({"prompt": False}, "prompt: must be a string or a list, got false"),
        ({"early_stopping": "x"}, "early_stopping: must be true or false or 'never', got 'x'"),
    ],
)
def test_a_bad_union_field_is_refused_as_the_type_it_resembles(
    client: httpx.Client, fields: dict[str, Any], message: str
) -> None:
    assert refused(client.post(TEXT, json={"prompt": "hi", **fields}))["message"] == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            '{"prompt": "hi", "temperature": 1e999}',
            "temperature: must be at most 100, got a number that is too large",
        ),
        (
            '{"prompt": "hi", "temperature": -1e999}',
            "temperature: must be at least 0, got a number that is too small",
        ),
        ("true", "the body must be a JSON object, got true"),
        ('[null, "a"]', 'the body must be a JSON object, got [null, "a"]'),
    ],
)
def test_values_are_quoted_as_json(client: httpx.Client, body: str, message: str) -> None:
    answer = client.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert refused(answer)["message"] == message


def test_a_misspelled_field_gets_a_suggestion(client: httpx.Client) -> None:
    error = refused(client.post(TEXT, json={"prompt": "hi", "max_token": 5}))
    assert "did you mean max_tokens?" in error["message"]
    error = refused(client.post(CHAT, json={"messages": user("hi"), "function": []}))
    assert "did you mean" not in error["message"], "an unsupported field is suggested"


def test_null_is_the_default_of_every_field_openai_has(client: httpx.Client) -> None:
    """Some clients send all their fields, set or not."""
    names = (
        "model n seed stop tools tool_choice response_format logprobs top_logprobs max_tokens stream store"
    )
    names += " audio function_call functions prediction reasoning_effort verbosity web_search_options"
    names += " another_clients_own_field"
    fields = {**dict.fromkeys(names.split()), "messages": user("hi"), "max_completion_tokens": 1}
    assert client.post(CHAT, json=fields).is_success
    options = {"include_usage": None, "include_obfuscation": None}
    assert client.post(CHAT, json={**fields, "stream": True, "stream_options": options}).is_success


def test_tokens_beyond_the_vocabulary_are_refused(client: httpx.Client) -> None:
    strange = [10**6]
    lists = (("prompt", strange), ("said", strange), ("stop_token_ids", strange))
    for name, value in (*lists, ("logit_bias", {"1000000": 1})):
        error = refused(client.post(TEXT, json={"prompt": "hi", name: value}))
        assert "token id 1000000 is out of range" in error["message"]
        assert error["param"] == name and error["message"].startswith(f"{name}: ")


def test_stop_ids_that_leave_no_token_for_min_tokens_are_refused() -> None:
    limits = Limits(context=8, vocab=4, waiting=1, stop_ids=frozenset({3}))
    with pytest.raises(BadParams, match=r"^stop_ids: min_tokens is 2, but every token ends the reply"):
        limits.check(1, SamplingParams(stop_ids=(0, 1, 2), min_tokens=2))
    limits.check(1, SamplingParams(stop_ids=(0, 1, 2)))
    limits.check(1, SamplingParams(stop_ids=(0, 1, 2), min_tokens=2, ignore_eos=True))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt": "hi"',
        b"[]",
        b"null",
        b'"hi"',
        b"5",
        b'{"prompt": "hi", "temperature": NaN}',
        b'{"prompt": "hi", "temperature": 1e999}',
        b'{"prompt": "hi", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "hi", "guided_regex": "\\ud800"}',
        b'{"prompt": "hi", "guided_json": {"const": "\\ud800"}}',
        b'{"prompt": "hi", "guided_choice": ["\\ud800"]}',
        b'{"\\ud800": 1, "prompt": "hi"}',
        b"\x00\x01\x02",
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
    ],
)
def test_a_malformed_body_is_refused(client: httpx.Client, body: bytes) -> None:
    response = client.post(TEXT, content=body, headers={"content-type": "application/json"})
    refused(response)


def test_the_reason_for_a_number_that_is_none(client: httpx.Client) -> None:
    for number, reason in (
        (b"9" * 5000, "a number in the JSON body must have at most 4300 digits"),
        (b"-Infinity", "invalid JSON: -Infinity is not a JSON number"),
    ):
        body = b'{"prompt": "hi", "seed": ' + number + b"}"
        error = refused(client.post(TEXT, content=body, headers={"content-type": "application/json"}))
        assert error["message"] == reason


def test_json_is_accepted_up_to_the_depth_limit(client: httpx.Client) -> None:
    def nested(depth: int) -> dict[str, Any]:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return {"messages": user("hi"), "max_tokens": 1, "chat_template_kwargs": {"deep": value}}

    assert client.post(CHAT, json=nested(MAX_DEPTH - 2)).status_code == 200
    assert "nested" in refused(client.post(CHAT, json=nested(MAX_DEPTH - 1)))["message"]


def test_another_content_type_is_refused(client: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"):
        response = client.post(TEXT, content=json.dumps({"prompt": "hi"}), headers={"content-type": kind})
        refused(response, 415)
    good = {"content-type": "application/json; charset=utf-8"}
    assert client.post(TEXT, content=b'{"prompt": "hi"}', headers=good).status_code == 200


def test_a_lone_surrogate_in_a_field_is_answered(client: httpx.Client) -> None:
    """The answer must be encodable, whatever it quotes."""
    json_body = {"content-type": "application/json"}
    model = client.post(TEXT, content=b'{"prompt": "hi", "model": "\\udfff"}', headers=json_body)
    refused(model, 404)
    user = client.post(TEXT, content=b'{"prompt": "hi", "user": "\\ud800"}', headers=json_body)
    assert user.status_code == 200


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    json_body = {"content-type": "application/json"}
    announced = raw(
        served,
        f"POST {TEXT} HTTP/1.1",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
        f"Content-Length: {MAX_BODY + 1}",
    )
    assert announced.startswith(b"HTTP/1.1 413 ")

    def endless() -> Any:
        for _ in range(MAX_BODY // 2**20 + 1):
            yield b" " * 2**20

    with served.client() as client:
        try:
            response = client.post(TEXT, content=endless(), headers=json_body)
        except httpx.WriteError:
            return  # the server answered and closed before all was sent
        refused(response, 413)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [True] * 200_000},
        {"prompt": [["a"] * 200_000]},
        {"prompt": "hi", "said": ["a"] * 200_000},
        {"prompt": "hi", "x" * 2_000_000: 1},
        {"prompt": "hi", **{f"field{n}": 1 for n in range(20_000)}},
        {"prompt": "hi", "logit_bias": {str(n): "a" for n in range(20_000)}},
    ],
    ids=range(6),
)
def test_many_errors_in_a_body_give_one_short_message(body: dict[str, Any]) -> None:
    """A message for each error would cost a second, and a hundred megabytes for each megabyte of body."""
    text = json.dumps(body)
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as caught:
            parsed(CompletionRequest, parse_json(text))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * len(text) + 2**20
    assert len(str(caught.value)) < 500


def test_other_members_of_messages_are_ignored(client: httpx.Client) -> None:
    """Clients send replies back with members of their own."""
    plain = [*user("hi"), {"role": "assistant", "content": "hello"}, *user("go on")]
    more = {"provider_specific_fields": {"a": None}, "reasoning": "hm", "refusal": None, "id": "m1"}
    part = {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}
    extended = [plain[0] | {"id": 7}, plain[1] | more | {"thinking_blocks": []}]
    extended.append({"role": "user", "content": [part]})
    texts = [
        client.post(CHAT, json={"messages": messages}).json()["choices"][0]["message"]["content"]
        for messages in (plain, extended)
    ]
    assert texts[0] == texts[1] != ""


def test_usage_in_each_chunk_if_asked(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"messages": user("hi"), "stream": True, "stream_options": options}
    with client.stream("POST", CHAT, json=asked) as reply:
        chunks = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


def test_the_version(client: httpx.Client) -> None:
    assert client.get("/version").json()["version"]
