"""litellm against the two servers of `python -m tests.server.clients`. Needs only litellm."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its import asks GitHub
import litellm

POCKET, SCRIPTED, KEY = sys.argv[1:]
MODEL = "test-model"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "the weather of a town",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "warm": {"type": "boolean"}},
    "required": ["town", "warm"],
    "additionalProperties": False,
}
PROVIDERS = ("openai", "hosted_vllm", "anthropic", "ollama_chat")


def at(provider: str, url: str, **more: Any) -> dict[str, Any]:
    base = f"{url}/v1" if provider in ("openai", "hosted_vllm") else url
    return {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": KEY} | more


def asked(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def chats(provider: str) -> None:
    whole = litellm.completion(**at(provider, POCKET, messages=asked("What is a KV block?"), max_tokens=20))
    assert whole.choices[0].message.content and whole.usage.completion_tokens > 5
    again = asyncio.run(
        litellm.acompletion(**at(provider, POCKET, messages=asked("Hello"), max_tokens=20, temperature=0))
    )
    assert again.choices[0].message.content


def streams(provider: str) -> None:
    given = at(provider, POCKET, messages=asked("What is a KV block?"), max_tokens=20, stream=True)
    chunks = [*litellm.completion(**given, stream_options={"include_usage": True})]
    whole = litellm.stream_chunk_builder(chunks)
    assert len(chunks) > 3 and whole.choices[0].message.content
    assert whole.usage.completion_tokens > 5


def tool_loop(provider: str, *, stream: bool) -> None:
    messages = asked("How is the weather?")
    given = at(provider, SCRIPTED, messages=messages, tools=TOOLS, max_tokens=200)
    reply = litellm.completion(**given, stream=stream)
    if stream:
        reply = litellm.stream_chunk_builder([*reply])
    message = reply.choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["town"]
    assert message.reasoning_content == "I need the weather.", message
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    last = litellm.completion(**given | {"messages": messages})
    assert last.choices[0].message.content == "It is sunny in Town.", last


def by_schema(provider: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "town", "schema": SCHEMA, "strict": True}}
    reply = litellm.completion(
        **at(provider, POCKET, messages=asked("A town"), response_format=form, max_tokens=200)
    )
    assert set(json.loads(reply.choices[0].message.content)) == {"town", "warm"}


def logprobs(provider: str) -> None:
    reply = litellm.completion(
        **at(provider, POCKET, messages=asked("Hello"), logprobs=True, top_logprobs=2, max_tokens=5)
    )
    entries = reply.choices[0].logprobs.content
    assert len(entries) == 5 and len(entries[0].top_logprobs) == 2


def text_completions() -> None:
    given = at("text-completion-openai", f"{POCKET}/v1", prompt="A KV block is", max_tokens=8)
    assert litellm.text_completion(**given).choices[0].text
    assert [*litellm.text_completion(**given, stream=True)]


def embeddings(provider: str) -> None:
    found = litellm.embedding(**at(provider, POCKET, input=["one", "two"]))
    assert len(found.data) == 2 and len(found.data[0]["embedding"]) > 10


def responses() -> None:
    given = at("openai", POCKET, input="What is a KV block?", max_output_tokens=20)
    whole = litellm.responses(**given, include=["message.output_text.logprobs"], top_logprobs=1)
    part = whole.output[0].content[0]
    assert part.text and len(part.logprobs) >= 20 - 1
    events = [each.type for each in litellm.responses(**given, stream=True)]
    assert events[0] == "response.created" and events[-1] in ("response.completed", "response.incomplete")


def errors(provider: str) -> None:
    try:
        litellm.completion(**at(provider, POCKET, messages=asked("x" * 100_000), max_tokens=5))
    except litellm.BadRequestError:
        pass
    else:
        raise AssertionError("a prompt that is too long was taken")
    try:
        litellm.completion(**at(provider, POCKET, messages=asked("x")) | {"api_key": "wrong"})
    except litellm.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


def checks() -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {"text completions": text_completions, "responses": responses}
    for each in PROVIDERS:
        found |= {
            f"{each}: chats": lambda each=each: chats(each),
            f"{each}: streams": lambda each=each: streams(each),
            f"{each}: tools": lambda each=each: tool_loop(each, stream=False),
            f"{each}: streamed tools": lambda each=each: tool_loop(each, stream=True),
            f"{each}: errors": lambda each=each: errors(each),
        }
    for each in ("openai", "hosted_vllm", "ollama_chat"):  # for Anthropic's it sends a tool
        found[f"{each}: JSON by schema"] = lambda each=each: by_schema(each)
    for each in PROVIDERS[:2]:
        found[f"{each}: logprobs"] = lambda each=each: logprobs(each)
        found[f"{each}: embeddings"] = lambda each=each: embeddings(each)
    return found


failed = 0
print("litellm", version("litellm"), "openai", version("openai"))
for name, check in checks().items():
    try:
        check()
    except Exception as error:
        failed += 1
        print(f"failed  {name}: {type(error).__name__}: {str(error)[:600]}")
    else:
        print(f"ok      {name}")
sys.exit(bool(failed))
