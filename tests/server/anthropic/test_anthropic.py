"""Anthropic's routes: whole and streamed replies, prompts and tools."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.server.anthropic.content import whole_content
from engine.server.message_writer import MessagePart
from engine.server.tool_calls.events import Call
from tests.server.conftest import MODEL, Served, dry, saying, serving, user, vanish
from tests.server.tools.test_tools import BARE, CALL, LLAMA, QWEN, THINKING
from tests.waiting import becomes

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
Expected = Callable[..., str]
WEATHER = {
    "name": "weather",
    "description": "Weather of a town",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string", "minLength": 2, "maxLength": 8}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {"hour": {"enum": [10, 11]}}}}


def body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 400, "messages": user(text)} | more


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a stream. Each has its name in its data too."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for lines in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = lines.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the whole message that the events make, after checking their order."""
    first, *between, delta, last = [each for each in events if each["type"] != "ping"]
    assert (first["type"], delta["type"], last) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    for index, group in groupby(between, lambda each: each["index"]):
        begin, *parts, end = group
        assert (begin["type"], end["type"]) == ("content_block_start", "content_block_stop")
        block = begin["content_block"]
        assert index == len(message["content"])
        for part in parts:
            assert part["type"] == "content_block_delta"
            kind = part["delta"].pop("type")
            [(name, text)] = part["delta"].items()
            assert kind == {"partial_json": "input_json_delta"}.get(name, f"{name}_delta")
            block[name] = block.get(name, "") + text
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(block.pop("partial_json"))
        message["content"].append(block)
    return {**message, **delta["delta"], "usage": delta["usage"]}


def ask(client: httpx.Client, stream: bool, **more: Any) -> dict[str, Any]:
    answer = client.post(MESSAGES, json=body(**more) | ({"stream": True} if stream else {}))
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = message_of(events_of(answer)) if stream else answer.json()
    return whole


@contextmanager
def client_of(folder: Path, text: str, template: str = QWEN) -> Iterator[httpx.Client]:
    with serving(saying(folder, text, template)) as served, served.client() as client:
        yield client


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with client_of(tmp_path_factory.mktemp("qwen"), "fine") as client:
        yield client


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class TestReplies:
    @both
    def test_a_message(self, client: httpx.Client, expected: Expected, stream: bool) -> None:
        reply = ask(client, stream)
        chat = client.post("/v1/chat/completions", json={"messages": user("hello")}).json()
        used = reply.pop("usage")
        assert reply.pop("id").startswith("msg_")
        assert reply == {
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": expected("hello")}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
        }
        assert used["output_tokens"] == chat["usage"]["completion_tokens"]
        read = used["input_tokens"] + used["cache_read_input_tokens"]
        assert read == chat["usage"]["prompt_tokens"]

    @both
    def test_the_limit(self, client: httpx.Client, stream: bool) -> None:
        reply = ask(client, stream, max_tokens=5)
        assert (reply["stop_reason"], reply["usage"]["output_tokens"]) == ("max_tokens", 5)

    @both
    def test_a_stop_sequence(self, client: httpx.Client, expected: Expected, stream: bool) -> None:
        text = expected("hello")
        word = text.split()[5]
        reply = ask(client, stream, stop_sequences=["§", word])
        assert reply["content"] == [{"type": "text", "text": text[: text.index(word)]}]
        assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", word)

    @both
    def test_reasoning_is_a_thinking_block(self, tmp_path: Path, stream: bool) -> None:
        with client_of(tmp_path, "It may rain.\n</think>\n\nTake a coat.", THINKING) as client:
            assert ask(client, stream)["content"] == [
                {"type": "thinking", "thinking": "It may rain.", "signature": ""},
                {"type": "text", "text": "Take a coat."},
            ]

    def test_usage_separates_cached_tokens(self, client: httpx.Client) -> None:
        text = " ".join(f"asked twice {n}" for n in range(80))
        first, second = (ask(client, False, text=text, max_tokens=2)["usage"] for _ in range(2))
        assert first["cache_read_input_tokens"] < 16
        total = first["input_tokens"] + first["cache_read_input_tokens"]
        assert second["cache_read_input_tokens"] == (total - 1) // 16 * 16
        assert second["input_tokens"] == total - second["cache_read_input_tokens"]
        answer = client.post(MESSAGES, json=body(text, max_tokens=2, stream=True))
        begun = events_of(answer)[0]["message"]["usage"]
        assert 1 <= begun.pop("output_tokens") <= second.pop("output_tokens") == 2
        assert begun == second

    def test_sampling_fields_reach_the_engine(self, client: httpx.Client, expected: Expected) -> None:
        fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "seed": 7}
        assert ask(client, False, **fields)["content"][0]["text"] == expected("hello", 7)
        forced = ask(client, False, ignore_eos=True, max_tokens=150, repetition_penalty=1.1, priority=2)
        assert forced["usage"]["output_tokens"] == 150

    def test_fields_without_effect_and_null_are_accepted(self, client: httpx.Client) -> None:
        fields = {
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "cache_control": {"type": "ephemeral"},
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "context_management": {"edits": []},
            "output_config": {"effort": "low"},
            "container": None,
            "tools": None,
            "nothing_known": None,
        }
        client.headers.update({"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b"})
        assert ask(client, False, **fields)["content"] == ask(client, False)["content"]

    def test_pings_while_there_are_no_tokens(self) -> None:
        with serving(dry(rate=10), pulse=0.02) as slow, slow.client() as client:
            events = events_of(client.post(MESSAGES, json=body(max_tokens=4, stream=True)))
        assert {"type": "ping"} in events[1:-2]
        assert message_of(events)["usage"]["output_tokens"] == 4

    def test_a_client_that_disconnects_aborts_its_reply(self, slow: Served) -> None:
        options = body(ignore_eos=True, max_tokens=3000, stream=True)
        with slow.client() as client, client.stream("POST", MESSAGES, json=options) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            assert slow.state.gate.in_flight == 1
        assert slow.becomes_idle()
        vanish(slow, MESSAGES, options | {"stream": False})

    def test_an_aborted_reply_says_so(self, slow: Served) -> None:
        found: list[dict[str, Any]] = []
        with slow.client() as client, slow.client() as other:
            asking = threading.Thread(
                target=lambda: found.append(ask(client, True, ignore_eos=True)), daemon=True
            )
            asking.start()
            assert becomes(lambda: slow.host.snapshot().running == 1)
            [row] = slow.host.snapshot().requests
            assert other.post(f"/engine/requests/{row.id}/abort").status_code == 204
            asking.join(20)
        assert found[0]["stop_reason"] == "abort"


CONVERSATION = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "Weather", "cache_control": {"type": "ephemeral"}}],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Köln"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
            {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True},
            {"type": "text", "text": "So?"},
            {"type": "text", "text": "Coat?"},
        ],
    },
]


class TestPrompts:
    def count(self, client: httpx.Client, **fields: Any) -> Any:
        answer = client.post(COUNT, json={"model": MODEL, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["input_tokens"]

    def test_blocks_make_the_same_prompt_as_a_chat_of_openai(self, qwen: httpx.Client) -> None:
        function = {"name": "weather", "arguments": '{"town": "Köln"}'}
        chat = [
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "Weather"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
                "reasoning_content": "Hm.",
            },
            {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
            {"role": "tool", "tool_call_id": "toolu_2", "content": ""},
            {"role": "user", "content": "So?\nCoat?"},
        ]
        parameters = WEATHER["input_schema"]
        tool = {"name": "weather", "parameters": parameters, "description": "Weather of a town"}
        tools = [{"type": "function", "function": tool}]
        theirs = qwen.post(
            "/v1/chat/completions", json={"messages": chat, "tools": tools, "max_tokens": 1}
        ).json()["usage"]["prompt_tokens"]
        system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
        fields = {"messages": CONVERSATION, "tools": [WEATHER | {"cache_control": None}], "system": system}
        usage = ask(qwen, False, **fields, max_tokens=1)["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == theirs
        assert usage["cache_read_input_tokens"] == (theirs - 1) // 16 * 16, "it is another prompt"
        assert self.count(qwen, **fields) == theirs
        hidden = self.count(qwen, **fields, tool_choice={"type": "none"})
        assert hidden == self.count(qwen, **fields | {"tools": None}) < theirs

    def test_thinking_is_an_option_of_the_template(self, tmp_path: Path) -> None:
        template = "{{ '+' if enable_thinking else '-----' }}" + QWEN
        with client_of(tmp_path, "fine", template) as client:
            counts = [
                self.count(client, messages=user("hi"), thinking={"type": kind})
                for kind in ("enabled", "adaptive", "disabled")
            ]
        assert (counts[1] - counts[0], counts[2] - counts[0]) == (0, 4)


class TestTools:
    @both
    @pytest.mark.parametrize(
        ("template", "text", "before"),
        [(QWEN, f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>", "Let me see."), (LLAMA, BARE, "")],
        ids=["qwen", "llama"],
    )
    def test_a_call(self, tmp_path: Path, template: str, text: str, before: str, stream: bool) -> None:
        with client_of(tmp_path, text, template) as client:
            reply = ask(client, stream, tools=[WEATHER])
        *texts, call = reply["content"]
        assert texts == ([{"type": "text", "text": before}] if before else [])
        assert call.pop("id").startswith("toolu_")
        assert call == {"type": "tool_use", "name": "weather", "input": {"town": "Köln"}}
        assert reply["stop_reason"] == "tool_use"

    @both
    def test_several_calls_unless_parallel_use_is_disabled(self, tmp_path: Path, stream: bool) -> None:
        two = f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>"
        with client_of(tmp_path, two) as client:
            many, one = (
                ask(client, stream, tools=[WEATHER], tool_choice=choice)["content"]
                for choice in ({"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True})
            )
        assert [len({call["id"] for call in calls}) for calls in (many, one)] == [2, 1]

    @both
    @pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}], ids=str)
    def test_a_required_call_matches_the_schema(
        self, qwen: httpx.Client, choice: dict[str, Any], stream: bool
    ) -> None:
        choice = choice | {"disable_parallel_tool_use": True}
        reply = ask(qwen, stream, tools=[WEATHER, CLOCK], tool_choice=choice)
        [call] = reply["content"]
        assert reply["stop_reason"] == "tool_use"
        assert call["name"] == "weather" or "name" not in choice
        assert call["name"] == "clock" or 2 <= len(call["input"]["town"]) <= 8

    def test_a_strict_tool_is_called_by_its_schema(self, tmp_path: Path) -> None:
        strict = CLOCK | {"name": "weather", "strict": True}
        with client_of(tmp_path, f"Ah.\n<tool_call>\n{CALL}\n</tool_call>") as client:
            calls = [each for each in ask(client, False, tools=[strict])["content"] if "input" in each]
        assert calls and all(call["input"].get("hour", 10) in (10, 11) for call in calls)

    def test_the_input_of_a_call_that_was_cut_is_empty(self) -> None:
        part = MessagePart(
            calls=[Call("weather", '{"town": "K', "call_1"), Call("weather", '{"town": "K"}', "call_2")]
        )
        assert [call["input"] for call in whole_content(part)] == [{}, {"town": "K"}]

    def test_without_tools_a_call_is_text(self, tmp_path: Path) -> None:
        text = f"<tool_call>\n{CALL}\n</tool_call>"
        with client_of(tmp_path, text) as client:
            for choice in (None, {"type": "none"}):
                tools = [WEATHER] if choice else None
                reply = ask(client, False, tools=tools, tool_choice=choice)
                assert reply["content"] == [{"type": "text", "text": text}]
                assert reply["stop_reason"] == "end_turn"
