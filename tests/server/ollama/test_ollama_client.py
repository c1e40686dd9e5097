"""Ollama's own client on the routes it supports."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lazily import lazy
from tests.server.conftest import KEY, MODEL, PLAIN, saying, serving, user
from tests.server.tools.test_tools import CALL, QWEN

ollama = lazy("ollama")

TEXT = f"Well.\n<tool_call>{CALL}</tool_call>"
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    with serving(saying(tmp_path, TEXT, QWEN)) as served:
        yield ollama.Client(served.url, headers={"Authorization": f"Bearer {KEY}"}, verify=PLAIN)


def test_log_probabilities(client: Any) -> None:
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 5}}
    for whole, parts in (
        (client.chat(MODEL, user("x"), **asked), client.chat(MODEL, user("x"), stream=True, **asked)),
        (client.generate(MODEL, "x", **asked), client.generate(MODEL, "x", stream=True, **asked)),
    ):
        assert [each.token for each in whole.logprobs] == list(TEXT[:5])
        assert all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in whole.logprobs)
        assert [each for part in parts for each in part.logprobs or ()] == whole.logprobs
    assert client.generate(MODEL, "x", top_logprobs=2).logprobs is None


def test_chats_tools_formats_and_models(client: Any) -> None:
    def weather(town: str) -> str:
        """The weather in a town."""
        return "15 degrees"

    messages: list[Any] = user("weather in Köln?")
    reply = client.chat(MODEL, messages, tools=[weather], options={"temperature": 0.0}, keep_alive="5m")
    [call] = reply.message.tool_calls or []
    assert (call.function.name, dict(call.function.arguments)) == ("weather", {"town": "Köln"})
    assert reply.eval_count and reply.eval_duration and reply.total_duration
    messages += [reply.message, {"role": "tool", "tool_name": "weather", "content": weather("Köln")}]
    parts = list(client.chat(MODEL, messages, stream=True))
    assert "".join(part.message.content or "" for part in parts) == TEXT
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert client.generate(MODEL, "hi", options={"num_predict": 3}).done_reason == "length"
    assert json.loads(client.generate(MODEL, "hi", format=SCHEMA).response)["town"] is not None
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert client.show(MODEL).capabilities == ["completion", "tools"]


def test_errors_are_its_own(client: Any) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat("llama3.2", user("hi"))
    assert missing.value.status_code == 404
    assert missing.value.error.startswith("model 'llama3.2' does not exist")
    with pytest.raises(ollama.ResponseError, match="suffix is not supported"):
        list(client.generate(MODEL, "hi", suffix="end", stream=True))
