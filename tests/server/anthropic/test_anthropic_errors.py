"""Errors of Anthropic's routes: their form, their status, and the field they name."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.anthropic.test_anthropic import COUNT, MESSAGES, WEATHER, body, client_of, qwen
from tests.server.conftest import KEY, Served, dry, serving
from tests.server.tools.test_tools import THINKING

__all__ = ["qwen"]  # the fixture, also used here

ODD = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


def turn(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


class TestErrors:
    @pytest.mark.parametrize("path", [MESSAGES, COUNT])
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"messages": []}, "messages: "),
            ({"messages": None}, "messages is missing"),
            ({"frobnicate": 1}, "frobnicate is not a known"),
            ({"output_config": {"format": {}}}, "output_config.format.type is missing"),
            ({"output_config": {"style": {}}}, "output_config.style is not a known"),
            (turn(5), r"messages\[0\].content must be a string or a list"),
            (turn(["x"]), r"messages\[0\].content\[0\].type must be text or tool_result here"),
            (turn([IMAGE]), r"messages\[0\].content\[0\] has type 'image'; this engine supports only text"),
            (turn([{"type": "document"}]), "supports only text"),
            (turn([{"type": "text"}]), 'must have the form {"type": "text"'),
            (turn([{"type": "tool_use", "id": "a"}]), "must be text or tool_result here, got 'tool_use'"),
            (turn([{"type": "tool_use", "id": "a"}], "assistant"), 'the form {"type": "tool_use"'),
            (
                turn([{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]),
                r"content\[0\].content\[0\] has type 'image'",
            ),
            (turn([]), r"messages\[0\].content must have at least one block"),
            (turn("\ud800") | {"system": "x"}, r"messages\[0\].content must be valid Unicode"),
            (
                turn([{"type": "text", "text": "\ud800"}]) | {"system": "x"},
                r"messages\[0\].content\[0\].text must be valid Unicode",
            ),
            (
                turn([{"type": "tool_use", "id": "a", "name": "\ud800", "input": {}}], "assistant"),
                r"messages\[0\].content\[0\].name must be valid Unicode",
            ),
            (turn("x", "system"), r"messages\[0\].role must be user or assistant, got 'system'"),
            (turn("x", "assistant"), "must end with a user message"),
            ({"system": [IMAGE]}, r"system\[0\] has type 'image'"),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\].type"),
            ({"tools": [{"name": "a b", "input_schema": {}}]}, r"tools\[0\].name"),
            ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, r"tools\[0\].input_schema"),
            ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
            ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ],
    )
    def test_a_bad_prompt(self, qwen: httpx.Client, path: str, fields: dict[str, Any], words: str) -> None:
        given = body(**fields)
        if path == COUNT:
            del given["max_tokens"]
        sent = qwen.post(path, content=json.dumps(given), headers={"content-type": "application/json"})
        self.refused(sent, 400, "invalid_request_error", words)

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"max_tokens": None}, "max_tokens is missing"),
            ({"max_tokens": 0}, "max_tokens: "),
            ({"temperature": "hot"}, "temperature: "),
            ({"stop_sequences": [""]}, "stop_sequences"),
            ({"tool_choice": {"type": "any"}}, "tool_choice: the request has no tools"),
            ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name must be set"),
            ({"tools": [WEATHER], "tool_choice": {"type": "any", "name": "weather"}}, "tool_choice.name"),
            ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "no tool named 'x'"),
            ({"tools": [WEATHER | {"strict": True, "input_schema": ODD}]}, r"tools\[0\]: .*uniqueItems"),
        ],
    )
    def test_a_bad_request(self, qwen: httpx.Client, fields: dict[str, Any], words: str) -> None:
        self.refused(qwen.post(MESSAGES, json=body(**fields)), 400, "invalid_request_error", words)

    def refused(self, answer: httpx.Response, status: int, kind: str, words: str) -> None:
        assert answer.status_code == status
        found = answer.json()
        assert found == {"type": "error", "error": {"type": kind, "message": found["error"]["message"]}}
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(found["error"]["message"])

    def test_the_model_the_path_the_method_and_the_body(self, client: httpx.Client) -> None:
        wrong = client.post(MESSAGES, json=body(model="claude"))
        self.refused(wrong, 404, "not_found_error", "model 'claude' does not exist")
        self.refused(client.post(f"{MESSAGES}/batches", json={}), 404, "not_found_error", "no such route")
        self.refused(client.get(MESSAGES), 405, "invalid_request_error", "does not accept GET")
        self.refused(client.post(MESSAGES, content="{}"), 415, "invalid_request_error", "content-type")
        large = client.post(MESSAGES, json=body("x" * 9_000_000))
        self.refused(large, 413, "request_too_large", "--max-body")
        assert "param" in client.post("/v1/messages_of_others").json()["error"]

    @pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"authorization": f"Basic {KEY}"}])
    def test_the_key(self, served: Served, headers: dict[str, str]) -> None:
        with served.client(headers=headers) as client:
            self.refused(client.post(MESSAGES, json=body()), 401, "authentication_error", "x-api-key: KEY")
        with served.client(headers={"x-api-key": KEY}) as client:
            assert client.post(MESSAGES, json=body(max_tokens=1)).status_code == 200

    def test_a_thread_is_refused_in_the_way_that_clients_recover_from(self, client: httpx.Client) -> None:
        error = client.post(MESSAGES, json=body(thread={"type": "create"})).json()["error"]
        assert error["details"] == {"error_code": "thread_unsupported_request"}
        assert (error["type"], error["message"][:8]) == ("invalid_request_error", "thread: ")

    def test_a_full_server_is_overloaded(self) -> None:
        endless = body(stream=True, ignore_eos=True)
        with (
            serving(dry(rate=20), in_flight=1) as one,
            one.client() as client,
            client.stream("POST", MESSAGES, json=endless),
        ):
            self.refused(client.post(MESSAGES, json=body()), 503, "overloaded_error", "retry later")

    def test_the_context_and_a_model_without_template_or_tools(self, tmp_path: Path) -> None:
        with serving(dry(max_context=64)) as one, one.client() as client:
            long = client.post(MESSAGES, json=body("word " * 100))
            self.refused(long, 400, "invalid_request_error", "takes 63")
            much = client.post(MESSAGES, json=body(max_tokens=30_000))
            self.refused(much, 400, "invalid_request_error", "lower max_tokens to 55")
        with client_of(tmp_path, "fine", THINKING) as client:
            self.refused(
                client.post(MESSAGES, json=body(tools=[WEATHER])), 400, "invalid_request_error", "no tools"
            )

    def test_an_error_within_a_stream_is_an_event(self, monkeypatch: pytest.MonkeyPatch) -> None:
        endless = body(stream=True, ignore_eos=True)
        with (
            serving(dry(rate=20)) as one,
            one.client() as client,
            client.stream("POST", MESSAGES, json=endless) as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines) == "event: message_start"
            monkeypatch.setattr(one.runner, "launch", None)
            rest = [*lines]
        at = rest.index("event: error")
        error = json.loads(rest[at + 1].removeprefix("data: "))
        assert error["type"] == "error" and error["error"]["type"] == "api_error"
        assert "event: message_stop" not in rest
