"""The Responses API: whole and streamed, with tools, structured output and errors, as the client reads it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from engine.api.config import EngineConfig
from engine.api.params import SamplingParams
from engine.dry import dry_engine
from tests.lazily import lazy
from tests.server.conftest import MODEL, Served, dry, saying, serving, user, vanish
from tests.server.openai.test_openai_client import Expected
from tests.server.openai.test_structured import SCHEMA, ids_of, matches
from tests.server.requests.test_fields import refused
from tests.server.tools.test_tools import BARE, CALL, LLAMA, QWEN, THINKING

openai = lazy("openai")

ROUTE = "/v1/responses"
WEATHER: list[Any] = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    }
]
FORMAT = {"type": "json_schema", "name": "town", "schema": SCHEMA, "strict": True}


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a stream, after checking their names and numbers."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [each["sequence_number"] for each in events] == [*range(len(events))]
    return events


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without what differs each time."""
    plain = {
        name: value for name, value in response.items() if name not in ("id", "created_at", "completed_at")
    }
    plain["output"] = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in response["output"]
    ]
    plain["usage"] = {name: value for name, value in response["usage"].items() if "input" not in name}
    return plain


class TestText:
    def test_a_whole_response(self, served: Served, expected: Expected) -> None:
        response = served.openai.responses.create(model=MODEL, input="hello")
        openai.types.responses.Response.model_validate(response.model_dump(), strict=True)
        assert response.object == "response" and response.id.startswith("resp_")
        assert response.model == MODEL and response.status == "completed"
        assert response.output_text == expected("hello")
        [message] = response.output
        assert message.type == "message" and message.role == "assistant" and message.status == "completed"
        assert message.content[0].type == "output_text" and message.content[0].annotations == []
        chat = served.openai.chat.completions.create(model=MODEL, messages=user("hello")).usage
        usage = response.usage
        assert usage is not None and chat is not None
        assert (usage.input_tokens, usage.output_tokens) == (chat.prompt_tokens, chat.completion_tokens)
        assert usage.total_tokens == chat.total_tokens
        assert usage.output_tokens_details.reasoning_tokens == 0
        assert response.error is None and response.incomplete_details is None

    def test_a_stream_reports_the_same_response(self, client: httpx.Client, expected: Expected) -> None:
        whole = client.post(ROUTE, json={"input": "hello"}).json()
        events = events_of(client.post(ROUTE, json={"input": "hello", "stream": True}))
        deltas = [each for each in events if each["type"] == "response.output_text.delta"]
        assert [each["type"].removeprefix("response.") for each in events if each not in deltas] == [
            *("created", "in_progress", "output_item.added", "content_part.added"),
            *("output_text.done", "content_part.done", "output_item.done", "completed"),
        ]
        assert "".join(each["delta"] for each in deltas) == expected("hello")
        assert events[-4]["text"] == expected("hello")
        added, item = events[2]["item"], events[-2]["item"]
        assert added == {**item, "status": "in_progress", "content": []}
        assert {each["item_id"] for each in deltas} == {item["id"]}
        created, ended = events[0]["response"], events[-1]["response"]
        assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
        assert created["id"] == ended["id"]
        assert ended["output"] == [item]
        assert without_ids(ended) == without_ids(whole)

    def test_the_client_reads_a_stream(self, served: Served, expected: Expected) -> None:
        with served.openai.responses.stream(model=MODEL, input=user("hello")) as stream:
            texts = [each.delta for each in stream if each.type == "response.output_text.delta"]
            assert stream.get_final_response().output_text == "".join(texts) == expected("hello")

    def test_cached_tokens_are_counted(self, served: Served) -> None:
        text = " ".join(f"responded to twice {n}" for n in range(80))
        responses = [
            served.openai.responses.create(model=MODEL, input=text, max_output_tokens=2) for _ in range(2)
        ]
        first, second = [each.usage for each in responses if each.usage]
        assert first.input_tokens_details.cached_tokens < 16
        assert second.input_tokens_details.cached_tokens == (second.input_tokens - 1) // 16 * 16

    def test_the_parameters_are_echoed(self, client: httpx.Client) -> None:
        fields = {
            "instructions": "be brief",
            "max_output_tokens": 3,
            "metadata": {"a": "b"},
            "temperature": 0.5,
            "top_p": 0.9,
            "reasoning": {"effort": "low"},
            "text": {"verbosity": "low"},
            "truncation": "auto",
            "user": "me",
            "prompt_cache_key": "k",
        }
        without_effect = {"store": True, "include": ["reasoning.encrypted_content"], "service_tier": "auto"}
        without_effect["prompt_cache_options"] = {"mode": "implicit"}
        response = client.post(ROUTE, json={"input": "hi", **fields, **without_effect}).json()
        text = {"format": {"type": "text"}, "verbosity": "low"}
        assert {name: response[name] for name in fields} == fields | {"text": text}
        assert (response["store"], response["background"]) == (False, False)

    def test_sampling_fields_of_a_chat(self, client: httpx.Client, expected: Expected) -> None:
        response = client.post(ROUTE, json={"input": "dice", "seed": 7, "top_k": -1}).json()
        assert response["output"][0]["content"][0]["text"] == expected("dice", 7)


class TestEnds:
    def test_a_response_at_its_limit_is_incomplete(self, client: httpx.Client) -> None:
        body = {"input": "hello", "max_output_tokens": 5}
        response = client.post(ROUTE, json=body).json()
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][0]["status"] == "incomplete"
        assert response["usage"]["output_tokens"] == 5
        *_, last = events_of(client.post(ROUTE, json={**body, "stream": True}))
        assert last["type"] == "response.incomplete"
        assert without_ids(last["response"]) == without_ids(response)

    def test_an_empty_reply_is_an_empty_message(self, tmp_path: Path) -> None:
        with serving(saying(tmp_path, "")) as served, served.client() as client:
            [message] = client.post(ROUTE, json={"input": "hi"}).json()["output"]
            assert message["content"] == [
                {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            ]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_disconnect_aborts(self, slow: Served, stream: bool) -> None:
        body = {"input": "hello", "stream": stream, "ignore_eos": True, "max_output_tokens": 3000}
        if stream:
            with slow.client() as client, client.stream("POST", ROUTE, json=body) as answer:
                assert any("output_text.delta" in line for line in answer.iter_lines())
            assert slow.becomes_idle()
        else:
            vanish(slow, ROUTE, body)

    def test_an_aborted_reply_is_a_failed_response(self, slow: Served) -> None:
        with slow.client() as client:
            body = {"input": "to be aborted", "stream": True, "ignore_eos": True, "max_output_tokens": 3000}
            with client.stream("POST", ROUTE, json=body) as answer:
                lines = answer.iter_lines()
                while "output_text.delta" not in next(lines):
                    pass
                [running] = slow.host.snapshot().requests
                client.post(f"/engine/requests/{running.id}/abort", json={}).raise_for_status()
                *_, last = [line for line in lines if line.startswith("data: ")]
        event = json.loads(last.removeprefix("data: "))
        assert event["type"] == "response.failed"
        response = event["response"]
        assert response["error"] == {"code": "server_error", "message": "the reply was aborted"}
        assert response["status"] == "failed" and response["output"][0]["status"] == "incomplete"

    def test_a_step_that_raises_fails_the_response(self) -> None:
        with serving(dry()) as served, served.client() as client:
            served.break_next_step()
            assert "coughed" in refused(client.post(ROUTE, json={"input": "x"}), 500)["message"]
            served.break_next_step()
            *_, last = events_of(client.post(ROUTE, json={"input": "x", "stream": True}))
            assert last["type"] == "response.failed"
            assert last["response"]["error"]["code"] == "server_error"
            assert "the device coughed" in last["response"]["error"]["message"]
            assert served.becomes_idle()

    def test_a_bad_parameter_found_while_it_runs_is_named(self, served: Served, client: httpx.Client) -> None:
        body = {"input": "hi", "guided_regex": "x~~y", "stop_token_ids": ids_of(served, "~~y")}
        assert refused(client.post(ROUTE, json=body))["param"] == "stop_token_ids"
        *_, last = events_of(client.post(ROUTE, json={**body, "stream": True}))
        error, [message] = last["response"]["error"], last["response"]["output"]
        assert (last["type"], error["code"]) == ("response.failed", "invalid_prompt")
        assert error["param"] == "stop_token_ids" and "no token is left" in error["message"]
        assert (message["status"], message["content"][0]["text"]) == ("incomplete", "x")


class TestTools:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("template", "text"), [(QWEN, f"Well.\n<tool_call>\n{CALL}\n</tool_call>"), (LLAMA, BARE)]
    )
    def test_calls_are_items(self, tmp_path: Path, template: str, text: str, stream: bool) -> None:
        with serving(saying(tmp_path, text, template)) as served, served.client() as client:
            answer = client.post(ROUTE, json={"input": "weather?", "tools": WEATHER, "stream": stream})
            response = events_of(answer)[-1]["response"] if stream else answer.json()
            *before, call = response["output"]
            assert [item["content"][0]["text"] for item in before] == (["Well."] if template is QWEN else [])
            assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
            assert json.loads(call["arguments"]) == {"town": "Köln"}
            assert call["call_id"].startswith("call_") and call["id"].startswith("fc_")
            assert response["status"] == "completed"
            if stream:
                *pieces, done = (each for each in events_of(answer) if each.get("item_id") == call["id"])
                assert {each["type"] for each in pieces} == {"response.function_call_arguments.delta"}
                assert done["type"] == "response.function_call_arguments.done"
                assert len(pieces) > 1, "the arguments come piece by piece"
                assert "".join(each["delta"] for each in pieces) == done["arguments"] == call["arguments"]

    def test_the_client_takes_a_tool_round_trip(self, tmp_path: Path) -> None:
        """The engine calls until the prompt has the tool's output."""
        tokenizer = saying(tmp_path, "", QWEN).tokenizer
        call, answer = (tokenizer.encode(text) for text in (f"<tool_call>{CALL}</tool_call>", "It is warm."))

        def script(prompt: Sequence[int], params: SamplingParams) -> list[int]:
            return list(answer if "tool: warm" in tokenizer.decode(prompt) else call)

        config = EngineConfig(model="pocket", blocks=4096)
        with serving(dry_engine(config, script=script, tokenizer=tokenizer)) as served:
            client = served.openai
            conversation: list[Any] = user("weather in Köln?")
            with client.responses.stream(model=MODEL, input=conversation, tools=WEATHER) as stream:
                for _ in stream:
                    pass
                first = stream.get_final_response()
            [asked] = first.output
            assert asked.type == "function_call"
            conversation += [item.model_dump() for item in first.output]
            conversation.append({"type": "function_call_output", "call_id": asked.call_id, "output": "warm"})
            second = client.responses.create(model=MODEL, input=conversation, tools=WEATHER)
            assert second.output_text == "It is warm."

    def test_a_required_and_a_named_tool(self, tmp_path: Path) -> None:
        hour = {"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]}
        clock = {"type": "function", "name": "clock", "parameters": hour, "strict": True}
        with serving(saying(tmp_path, "I would rather talk.", QWEN)) as served, served.client() as client:
            for choice in ("required", {"type": "function", "name": "clock"}):
                fields = {"tools": [clock], "tool_choice": choice, "parallel_tool_calls": False}
                response = client.post(ROUTE, json={"input": "late?", **fields}).json()
                [call] = response["output"]
                assert call["name"] == "clock" and json.loads(call["arguments"]).keys() == {"hour"}
                assert response["tool_choice"] == choice and response["tools"] == [clock]
            none = client.post(ROUTE, json={"input": "late?", "tools": [clock], "tool_choice": "none"}).json()
            assert none["output"][0]["type"] == "message"

    @pytest.mark.parametrize("opened", [False, True])
    def test_reasoning_is_an_item_of_its_own(self, tmp_path: Path, opened: bool) -> None:
        text = ("" if opened else "<think>\n") + "It may rain.\n</think>\n\nTake a coat."
        with (
            serving(saying(tmp_path, text, THINKING if opened else QWEN)) as served,
            served.client() as client,
        ):
            whole = client.post(ROUTE, json={"input": "?"}).json()
            events = events_of(client.post(ROUTE, json={"input": "?", "stream": True}))
            thought, message = whole["output"]
            assert (thought["type"], thought["summary"]) == ("reasoning", [])
            assert thought["content"] == [{"type": "reasoning_text", "text": "It may rain."}]
            assert message["content"][0]["text"] == "Take a coat."
            usage = whole["usage"]
            assert 12 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"] - 12
            assert without_ids(events[-1]["response"]) == without_ids(whole)
            thoughts = [each["delta"] for each in events if each["type"] == "response.reasoning_text.delta"]
            assert "".join(thoughts) == "It may rain."


class TestStructured:
    def test_a_schema(self, client: httpx.Client) -> None:
        response = client.post(ROUTE, json={"input": "hi", "text": {"format": FORMAT}}).json()
        assert matches(response["output"][0]["content"][0]["text"])
        assert response["text"] == {"format": FORMAT}

    def test_any_object(self, client: httpx.Client) -> None:
        body = {"input": "hi", "text": {"format": {"type": "json_object"}}}
        text = client.post(ROUTE, json=body).json()["output"][0]["content"][0]["text"]
        assert matches(text, {"type": "object"})

    def test_the_client_parses_it_into_a_model(self, served: Served) -> None:
        class Town(BaseModel):
            town: str
            people: int

        client = served.openai
        whole = client.responses.parse(model=MODEL, input="hi", text_format=Town)
        assert isinstance(whole.output_parsed, Town)
        with client.responses.stream(model=MODEL, input="hi", text_format=Town) as stream:
            for _ in stream:
                pass
            assert isinstance(stream.get_final_response().output_parsed, Town)
