"""OpenAI's Agents SDK against the two servers of `python -m tests.server.clients`. Needs openai-agents."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

POCKET, SCRIPTED, KEY = sys.argv[1:]
MODEL = "test-model"
KINDS = {"responses": OpenAIResponsesModel, "chats": OpenAIChatCompletionsModel}
BRIEF = ModelSettings(max_tokens=60)
set_tracing_disabled(True)


class Town(BaseModel):
    name: str
    warm: bool


@function_tool
def weather(town: str) -> str:
    """The weather of a town."""
    return f"sunny in {town}"


def model(kind: str, url: str) -> Any:
    return KINDS[kind](model=MODEL, openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY))


async def text(kind: str) -> None:
    agent = Agent(name="a", instructions="be brief", model=model(kind, POCKET), model_settings=BRIEF)
    result = await Runner.run(agent, "What is a KV block?")
    assert result.final_output
    again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "And a page?"}])
    assert again.final_output


async def stream(kind: str) -> None:
    agent = Agent(name="a", model=model(kind, POCKET), model_settings=BRIEF)
    running = Runner.run_streamed(agent, "What is a KV block?")
    events = [event async for event in running.stream_events()]
    deltas = [
        event.data.delta
        for event in events
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert len(deltas) > 3 and "".join(deltas) == running.final_output


async def tools(kind: str) -> None:
    agent = Agent(name="a", tools=[weather], model=model(kind, SCRIPTED))
    result = await Runner.run(agent, "How is the weather?")
    assert result.final_output == "It is sunny in Town.", result.final_output
    assert len(result.to_input_list()) >= 4


async def streamed_tools(kind: str) -> None:
    agent = Agent(name="a", tools=[weather], model=model(kind, SCRIPTED))
    running = Runner.run_streamed(agent, "How is the weather?")
    names = [event.name async for event in running.stream_events() if event.type == "run_item_stream_event"]
    assert "tool_called" in names and "tool_output" in names, names
    assert running.final_output == "It is sunny in Town."


async def handoff(kind: str) -> None:
    clerk = Agent(name="clerk", model=model(kind, SCRIPTED))
    result = await Runner.run(Agent(name="a", handoffs=[clerk], model=model(kind, SCRIPTED)), "Hello")
    assert result.last_agent is clerk and result.final_output == "It is sunny in Town."


async def output_type(kind: str) -> None:
    settings = ModelSettings(max_tokens=200)
    agent = Agent(name="a", output_type=Town, model=model(kind, POCKET), model_settings=settings)
    assert isinstance((await Runner.run(agent, "A town")).final_output, Town)


CHECKS: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {
    "text": text,
    "stream": stream,
    "tools": tools,
    "streamed tools": streamed_tools,
    "handoff": handoff,
    "output_type": output_type,
}


async def main() -> int:
    failed = 0
    print("openai-agents", version("openai-agents"), "openai", version("openai"))
    for kind in KINDS:
        for name, check in CHECKS.items():
            try:
                await check(kind)
            except Exception as error:
                failed += 1
                print(f"failed  {kind}: {name}: {type(error).__name__}: {str(error)[:600]}")
            else:
                print(f"ok      {kind}: {name}")
    return int(failed > 0)


sys.exit(asyncio.run(main()))
