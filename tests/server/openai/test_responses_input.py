"""What the Responses API accepts: items as messages, and an error that names each bad field."""

import json
from typing import Any

import httpx
import pytest

from engine.server.openai.responses_api.conversation import chat_messages
from tests.lazily import lazy
from tests.server.conftest import MODEL, Served, user
from tests.server.openai.test_responses import ROUTE, WEATHER
from tests.server.requests.test_fields import refused

openai = lazy("openai")

JSON = {"content-type": "application/json"}


def part(kind: str, **more: str) -> dict[str, Any]:
    return {"type": kind, **more}


class TestInput:
    def test_items_are_messages(self) -> None:
        items = [
            {"role": "user", "content": [part("input_text", text="a"), part("text", text="b")]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [part("output_text", text="c")], "id": "m"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
            {"type": "function_call_output", "call_id": "2", "output": [part("input_text", text="y")]},
            {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
        ]

        def call(id: str, name: str) -> dict[str, Any]:
            return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}

        assert chat_messages(items, "brief") == [
            {"role": "system", "content": "brief"},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "c", "tool_calls": [call("1", "f"), call("2", "g")]},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "tool", "tool_call_id": "2", "content": "y"},
            {"role": "assistant", "content": "", "tool_calls": [call("3", "f")]},
        ]

    @pytest.mark.parametrize("instructions", [None, "be brief"])
    def test_instructions_and_the_first_system_messages_are_one(self, instructions: str | None) -> None:
        first = [{"role": "developer", "content": "in French"}, {"role": "system", "content": "politely"}]
        rest = [{"role": "user", "content": "hi"}, {"role": "developer", "content": "now in German"}]
        text = "in French\n\npolitely" if instructions is None else "be brief\n\nin French\n\npolitely"
        assert chat_messages([*first, *rest], instructions) == [{"role": "developer", "content": text}, *rest]

    def test_instructions_reach_the_template(self, client: httpx.Client) -> None:
        messages = [{"role": "system", "content": "be brief"}, *user("hi")]
        chat = client.post("/v1/chat/completions", json={"messages": messages}).json()
        response = client.post(ROUTE, json={"input": "hi", "instructions": "be brief"}).json()
        text = response["output"][0]["content"][0]["text"]
        assert text == chat["choices"][0]["message"]["content"]
        assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", "is missing"),
        ({"input": []}, "input", ""),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "has no message"),
        ({"input": "\ud800"}, "input", "lone surrogate"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "must be one of system, "),
        ({"input": [{"role": "user"}]}, "input[0].content", "must be text or a list"),
        (
            {"input": [{"role": "user", "content": [part("input_image", image_url="x")]}]},
            "input[0].content[0]",
            "has type 'input_image'; this server supports only text",
        ),
        (
            {"input": [{"role": "user", "content": [part("input_text")]}]},
            "input[0].content[0]",
            "must have the form",
        ),
        ({"input": [*user("a"), {"type": "item_reference", "id": "x"}]}, "input[1].type", "supports only"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments", "must be a string"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "a string"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "has type 'web_search'; this server supports only"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "must be 1 to 64 of a-z"),
        ({"tools": [{**WEATHER[0], "cost": 5}]}, "tools[0].cost", "not a known field"),
        ({"tools": [{**WEATHER[0], "parameters": 5}]}, "tools[0].parameters", "JSON schema"),
        ({"tools": WEATHER}, "tools", "takes no tools"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", ""),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", ""),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "foo"}}}},
            "text.format.schema",
            "Invalid type: foo",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "is missing"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "is missing"),
        ({"text": {"tone": "dry"}}, "text.tone", "not a known"),
        ({"background": True}, "background", "not supported"),
        ({"return_token_ids": True}, "return_token_ids", "is not part of responses"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation in input"),
        ({"conversation": "conv_1"}, "conversation", "stores nothing"),
        ({"prompt": {"id": "p"}}, "prompt", "stores nothing"),
        ({"max_tokens": 5}, "max_tokens", "is max_output_tokens in this API"),
        ({"n": 2}, "n", "not a known"),
        ({"response_format": {"type": "text"}}, "response_format", "not a known"),
        ({"max_output_tokens": 0}, "max_output_tokens", ""),
        ({"temperature": 101}, "temperature", ""),
    ],
)
def test_an_error_names_the_field(client: httpx.Client, fields: Any, param: str, words: str) -> None:
    error = refused(client.post(ROUTE, content=json.dumps({"input": "hi", **fields}), headers=JSON))
    assert error["param"] == param
    assert words in error["message"]


def test_errors_are_the_clients_own_classes(served: Served) -> None:
    client = served.openai
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-5", input="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    assert bad.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model=MODEL, input="word " * 200_000)
    assert long.value.code == "context_length_exceeded"
