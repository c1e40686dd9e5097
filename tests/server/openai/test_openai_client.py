"""The official client, sync and async, on the routes it supports."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from engine.api.events import TokenLogprob
from engine.server.openai.logprobs import CompletionLogprobs
from engine.serving.groups.samples import seed_of
from tests.lazily import lazy
from tests.server.conftest import KEY, MODEL, Served, saying, serving, user
from tests.server.tools.test_tools import QWEN

openai = lazy("openai")

Expected = Callable[..., str]


def test_a_whole_reply(served: Served, expected: Expected) -> None:
    reply = served.openai.chat.completions.create(model=MODEL, messages=user("hello"))
    assert reply.object == "chat.completion"
    assert reply.model == MODEL
    [choice] = reply.choices
    assert choice.message.content == expected("hello")
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.completion_tokens > 12


def test_a_stream_has_the_same_text(served: Served, expected: Expected) -> None:
    stream = served.openai.chat.completions.create(
        model=MODEL, messages=user("hello"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    *parts, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in parts) == expected("hello")
    assert parts[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in parts][-1] == "stop"
    assert all(chunk.choices[0].finish_reason is None for chunk in parts[:-1])
    assert last.choices == []
    assert last.usage is not None
    whole = served.openai.chat.completions.create(model=MODEL, messages=user("hello"))
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_async_client_streams_many_at_once(served: Served, expected: Expected) -> None:
    async def one(client: Any, n: int) -> str:
        stream = await client.chat.completions.create(model=MODEL, messages=user(f"number {n}"), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{served.url}/v1") as client:
            return await asyncio.gather(*(one(client, n) for n in range(12)))

    assert asyncio.run(all_of_them()) == [expected(f"number {n}") for n in range(12)]


def test_seeds_of_several_choices_are_derived_from_one(served: Served, expected: Expected) -> None:
    reply = served.openai.chat.completions.create(model=MODEL, messages=user("dice"), n=3, seed=7)
    seeds = [seed_of(7, n) for n in range(3)]
    assert [choice.message.content for choice in reply.choices] == [expected("dice", seed) for seed in seeds]
    assert len(set(seeds)) == 3
    assert seeds[0] == 7
    again = served.openai.chat.completions.create(model=MODEL, messages=user("dice"), n=3, seed=7)
    assert [c.message.content for c in again.choices] == [c.message.content for c in reply.choices]


def test_usage_reports_cached_tokens(served: Served) -> None:
    text = " ".join(f"told twice {n}" for n in range(80))
    client = served.openai
    cached = []
    for _ in range(2):
        usage = client.chat.completions.create(model=MODEL, messages=user(text), max_tokens=2).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert cached[0] is not None
    assert cached[0] < 16
    assert cached[1] == (usage.prompt_tokens - 1) // 16 * 16


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_reply_at_its_limit_ends_with_length(served: Served, name: str) -> None:
    options: dict[str, Any] = {name: 5}
    reply = served.openai.chat.completions.create(model=MODEL, messages=user("hello"), **options)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5


def test_a_stop_string_ends_a_reply(served: Served, expected: Expected) -> None:
    text = expected("hello")
    word = text.split()[5]
    reply = served.openai.chat.completions.create(model=MODEL, messages=user("hello"), stop=[word, "§"])
    assert reply.choices[0].message.content == text[: text.index(word)]
    assert reply.choices[0].finish_reason == "stop"


def test_vllm_fields_are_taken_from_extra_body(served: Served) -> None:
    reply = served.openai.chat.completions.create(
        model=MODEL,
        messages=user("hello"),
        max_tokens=150,
        extra_body={
            "ignore_eos": True,
            "top_k": -1,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "min_tokens": 3,
        },
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 150
    token = served.state.host.pieces([0])  # any token of the vocabulary has text here
    assert len(token) == 1


def test_a_stop_token_ends_a_reply(served: Served) -> None:
    whole = served.openai.completions.create(model=MODEL, prompt="hi", max_tokens=8, logprobs=0)
    assert whole.choices[0].logprobs is not None
    text = whole.choices[0].text
    ids = served.engine.tokenizer.encode(text)
    reply = served.openai.completions.create(
        model=MODEL, prompt="hi", max_tokens=8, extra_body={"stop_token_ids": [ids[4]]}
    )
    assert reply.choices[0].finish_reason == "stop"
    assert text.startswith(reply.choices[0].text)
    assert len(reply.choices[0].text) < len(text)


def test_logprobs_of_a_chat(served: Served) -> None:
    def ask(stream: bool) -> Any:
        return served.openai.chat.completions.create(
            model=MODEL, messages=user("hello"), logprobs=True, top_logprobs=2, max_tokens=6, stream=stream
        )

    whole = ask(False).choices[0]
    entries = whole.logprobs.content
    assert "".join(entry.token for entry in entries) == whole.message.content
    assert all(bytes(entry.bytes).decode() == entry.token for entry in entries)
    assert all(
        len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token for entry in entries
    )
    parts = [chunk.choices[0].logprobs.content for chunk in ask(True)]
    assert [entry for part in parts for entry in part] == entries


def test_completions_of_several_prompts(served: Served) -> None:
    client = served.openai
    reply = client.completions.create(
        model=MODEL, prompt=["one", "two"], n=2, max_tokens=5, logprobs=1, seed=1
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    alone = client.completions.create(model=MODEL, prompt="two", max_tokens=5, seed=1)
    assert reply.choices[2].text == alone.choices[0].text
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == reply.choices[0].text
    assert logprobs.text_offset is not None
    for token, at in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert reply.choices[0].text[at:].startswith(token)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 20


def test_the_sampled_token_is_listed_with_the_likeliest() -> None:
    names = {1: b"a", 2: b"b", 3: b"c"}
    logprobs = CompletionLogprobs(lambda ids: [names[id] for id in ids])
    entries = [TokenLogprob(3, -4.0, 9, ((1, -0.1), (2, -2.5))), TokenLogprob(1, -0.1, 1, ((1, -0.1),))]
    entries.append(TokenLogprob(2, -float("inf"), 3, ()))
    listed = logprobs.record(entries)["top_logprobs"]
    assert listed == [{"a": -0.1, "b": -2.5, "c": -4.0}, {"a": -0.1}, {"b": -9999.0}]


def test_the_text_of_each_token_is_looked_up_once() -> None:
    asked: list[int] = []

    def pieces(ids: Sequence[int]) -> list[bytes]:
        asked.extend(ids)
        return [b"%d" % id for id in ids]

    logprobs = CompletionLogprobs(pieces)
    entries = [TokenLogprob(n % 5, -1.0, 2, ((n % 3, -0.5), (7, -2.0))) for n in range(100)]
    found = logprobs.record(entries)
    assert sorted(asked) == [0, 1, 2, 3, 4, 7]
    assert found["tokens"] == [f"{n % 5}" for n in range(100)]
    assert found["text_offset"] == [*range(100)] and logprobs.record(entries)["text_offset"][0] == 100


def test_completions_of_token_ids_and_as_a_stream(served: Served) -> None:
    client = served.openai
    ids = served.engine.tokenizer.encode_raw("a text")
    one = client.completions.create(model=MODEL, prompt=ids, max_tokens=9)
    several = client.completions.create(model=MODEL, prompt=[ids, [5, 6]], max_tokens=9)
    text = client.completions.create(model=MODEL, prompt="a text", max_tokens=9)
    assert one.choices[0].text == several.choices[0].text == text.choices[0].text
    stream = client.completions.create(model=MODEL, prompt="a text", max_tokens=9, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == text.choices[0].text


def test_a_completion_has_16_tokens_by_default(served: Served) -> None:
    reply = served.openai.completions.create(model=MODEL, prompt="hi", extra_body={"ignore_eos": True})
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16


def test_models(served: Served) -> None:
    client = served.openai
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "minichat"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_errors_are_the_clients_own_classes(served: Served) -> None:
    client = served.openai
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=user("hi"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=user("hi"), web_search_options={})
    assert bad.value.param == "web_search_options"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="hi", max_tokens=100_000)
    assert long.value.code == "context_length_exceeded"
    stranger = openai.OpenAI(api_key="sk-wrong", base_url=f"{served.url}/v1", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_fields_without_effect_are_accepted(served: Served) -> None:
    reply = served.openai.chat.completions.create(
        model=MODEL,
        messages=user("hi"),
        max_tokens=1,
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        verbosity="low",
        prompt_cache_options={"mode": "implicit"},
        response_format={"type": "text"},
        parallel_tool_calls=True,
        temperature=None,
        stop=None,
    )
    assert reply.choices[0].finish_reason == "length"


def test_the_developer_role_is_system_in_older_templates(served: Served, client: httpx.Client) -> None:
    def ask(role: str) -> Any:
        messages = [{"role": role, "content": "be brief"}, *user("hi")]
        return client.post("/v1/chat/completions", json={"messages": messages}).json()["choices"]

    assert ask("developer") == ask("system")


def test_the_async_client_supports_all_features(tmp_path: Path) -> None:
    """Tools, schemas, logprobs, several choices and usage, as the client itself requests them."""

    class Town(BaseModel):
        name: str
        people: int

    options: dict[str, Any] = {"model": MODEL, "messages": user("hi")}
    tools = [openai.pydantic_function_tool(Town)]

    async def everything(url: str) -> None:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0) as client:
            chat = client.chat.completions
            parsed = await chat.parse(**options, response_format=Town)
            assert isinstance(parsed.choices[0].message.parsed, Town)
            called = await chat.parse(
                **options, tools=tools, tool_choice="required", parallel_tool_calls=False
            )
            [call] = called.choices[0].message.tool_calls or []
            assert isinstance(call.function.parsed_arguments, Town)
            async with chat.stream(**options, tools=tools, response_format=Town) as stream:
                async for _ in stream:
                    pass
                assert isinstance((await stream.get_final_completion()).choices[0].message.parsed, Town)
            texts, usage = ["", "", ""], None
            async for chunk in await chat.create(
                **options,
                n=3,
                logprobs=True,
                top_logprobs=1,
                max_tokens=9,
                stream=True,
                stream_options={"include_usage": True},
            ):
                usage = chunk.usage
                for choice in chunk.choices:
                    assert choice.logprobs is not None
                    texts[choice.index] += "".join(entry.token for entry in choice.logprobs.content or [])
            assert usage is not None and usage.completion_tokens == 27
            assert texts == [texts[0]] * 3 and len(texts[0]) > 5
            with pytest.raises(openai.BadRequestError, match="best_of"):
                await client.completions.create(model=MODEL, prompt="x", best_of=2, n=3)

    with serving(saying(tmp_path, "hello there, whoever you are", QWEN)) as served:
        asyncio.run(everything(f"{served.url}/v1"))
