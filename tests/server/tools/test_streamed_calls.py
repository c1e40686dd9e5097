"""Calls that come argument by argument, as the official clients put them together."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.scheduling.step import Step
from tests.lazily import lazy
from tests.server.anthropic.test_anthropic import WEATHER as ANTHROPIC_WEATHER
from tests.server.anthropic.test_anthropic import body
from tests.server.conftest import KEY, MODEL, Served, saying, serving, user
from tests.server.openai.test_responses import WEATHER as RESPONSES_WEATHER
from tests.server.tools.test_call_formats import KOELN, NOW, TWO
from tests.server.tools.test_tools import QWEN, WEATHER, ask
from tests.waiting import LIMIT

anthropic = lazy("anthropic")

HARMONY = QWEN.replace("<tool_call>", "<|channel|>commentary to=functions.")
EXPECTED = [(name, json.loads(arguments)) for name, arguments in (KOELN, NOW)]


@pytest.fixture(scope="module", params=["qwen", "harmony"])
def calling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that thinks only in Harmony, and writes a word and two calls."""
    template = HARMONY if request.param == "harmony" else QWEN
    folder = tmp_path_factory.mktemp(request.param)
    with serving(saying(folder, TWO[request.param][0], template)) as served:
        loop = served.state.engine._loop

        def after_earlier_tokens(step: Step) -> None:
            """So that a call does not come in one piece."""
            if step.number % 4 == 0:
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0.005), loop).result(LIMIT)

        served.runner.broken = after_earlier_tokens
        yield served


def thought(served: Served) -> str:
    return "So." if served.state.tool_style == "harmony" else ""


def test_openai_s_chats(calling: Served) -> None:
    options = {"model": MODEL, "messages": user("?"), "tools": WEATHER}
    pieces = list[tuple[int, str]]()
    with calling.openai.chat.completions.stream(**options) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                pieces.append((event.index, event.arguments_delta))
        [choice] = stream.get_final_completion().choices
    calls = choice.message.tool_calls or []
    whole = ask(calling.openai, tools=WEATHER).choices[0].message
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == EXPECTED
    assert [call.function.arguments for call in calls] == [
        call.function.arguments for call in whole.tool_calls
    ]
    for index, call in enumerate(calls):
        mine = [piece for number, piece in pieces if number == index]
        assert "".join(mine) == call.function.arguments and call.id.startswith("call_")
    assert len(pieces) > 3, "the arguments come while they are written"
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == whole.content == "Hm."
    assert getattr(whole, "reasoning_content", "") == thought(calling)


def test_openai_s_responses(calling: Served) -> None:
    pieces: dict[int, list[str]] = {}
    with calling.openai.responses.stream(model=MODEL, input="?", tools=RESPONSES_WEATHER) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                pieces.setdefault(event.output_index, []).append(event.delta)
        output = stream.get_final_response().output
    calls = [item for item in output if item.type == "function_call"]
    assert [item.type for item in output if item.type != "reasoning"] == ["message", *["function_call"] * 2]
    assert [item.type for item in output].count("reasoning") == bool(thought(calling))
    assert [(call.name, json.loads(call.arguments)) for call in calls] == EXPECTED
    assert ["".join(each) for each in pieces.values()] == [call.arguments for call in calls]
    assert sum(map(len, pieces.values())) > 3


def test_anthropic_s_messages(calling: Served) -> None:
    pieces = list[str]()
    with (
        anthropic.Anthropic(api_key=KEY, base_url=calling.url, max_retries=0) as client,
        client.messages.stream(**body(tools=[ANTHROPIC_WEATHER])) as stream,
    ):
        for event in stream:
            if event.type == "input_json":
                pieces.append(event.partial_json)
        final = stream.get_final_message()
    blocks = [block for block in final.content if block.type == "tool_use"]
    assert [(block.name, block.input) for block in blocks] == EXPECTED
    assert "".join(pieces) == KOELN[1] + NOW[1] and len(pieces) > 3
    kinds = [block.type for block in final.content]
    assert kinds == ["thinking"] * bool(thought(calling)) + ["text", "tool_use", "tool_use"]
    assert final.stop_reason == "tool_use"


def test_reasoning_of_harmony_without_tools(tmp_path: Path) -> None:
    text = (
        "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant"
        "<|channel|>final<|message|>It is warm."
    )
    with serving(saying(tmp_path, text, HARMONY)) as served:
        client = served.openai
        message = ask(client).choices[0].message
        assert (message.reasoning_content, message.content) == ("Let me think.", "It is warm.")
        parts = [chunk.choices[0].delta for chunk in ask(client, True)]
        assert "".join(part.content or "" for part in parts) == "It is warm."
