"""What a clumsy or hostile client puts in place of a field: one short sentence answers it, never a 500."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.server.http import bodies
from tests.cases import one_row_of
from tests.server.conftest import MODEL, Served, dry, serving, user

HOSTILE: list[Any] = [
    *("", "x", "\x00", "\ud800", "a" * 20_000, "😀" * 1000, "{{x}}{% raw %}", "NaN"),
    *(0, -1, 1.5, 1e308, 10**30, 2**63, True, None),
    *([], {}, [[]], [None], [{}], {"": None}, {"a": {"b": [1]}}, {"\ud800": 1}, ["\ud800"], ["a"] * 2000),
    *({"type": "x"}, {"type": 5}, [{"type": "text", "text": 5}], [{"type": "text", "text": "\ud83d"}]),
    *([{"role": "user"}], [2**40]),
]  # fmt: skip
_TOOL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
_JSON = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
_SHORT = {"model": MODEL, "max_tokens": 2}
_CHAT: dict[str, Any] = _SHORT | {
    "messages": [
        *user("hi"),
        {"role": "assistant", "content": None, "tool_calls": [_TOOL | {"id": "1"}]},
        {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "1"},
    ],
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["zz"], "logit_bias": {"5": 1}, "n": 1,
    "logprobs": True, "top_logprobs": 2, "bad_words": ["q"], "stop_token_ids": [3], "stream": False,
    "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low", "metadata": {"a": "b"},
    "response_format": _JSON,
}  # fmt: skip
_GUIDED = {"guided_regex": "a+", "guided_choice": ["b"], "guided_grammar": 'start: "a"', "guided_json": {}}
_TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "x"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "y"}]},
]
_ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
]
_OPTIONS = {"temperature": 0.5, "seed": 1, "num_predict": 2, "stop": ["zz"], "repeat_penalty": 1.1}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", _CHAT),
    *(("/v1/completions", _SHORT | {"prompt": "hi", name: value}) for name, value in _GUIDED.items()),
    ("/v1/completions", _SHORT | {"prompt": "hi", "echo": True, "logprobs": 2, "prompt_logprobs": 1, "n": 2}),
    ("/v1/completions", _SHORT | {"prompt": [[1, 2], [3]], "stream": True, "stream_options": {}}),
    ("/v1/responses", {"input": _ITEMS, "instructions": "i", "max_output_tokens": 2, "text": {"format": {}}}),
    ("/v1/messages", _SHORT | {"messages": _TURNS, "system": "s", "thinking": {"type": "disabled"}}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "float", "pooling": "last"}),
    ("/tokenize", {"model": MODEL, "prompt": "x"}),
    ("/detokenize", {"model": MODEL, "tokens": [1, 2]}),
    ("/api/chat", {"model": MODEL, "messages": user("x"), "stream": False, "options": _OPTIONS}),
    ("/api/generate", {"model": MODEL, "prompt": "x", "system": "s", "format": {}, "options": _OPTIONS}),
    ("/api/embed", {"model": MODEL, "input": ["a"], "truncate": True}),
    ("/api/embeddings", {"model": MODEL, "prompt": "a"}),
    ("/engine/replies", {"prompt": [1], "params": {"max_tokens": 2, "stop": ["z"], "temperature": 0.5}}),
    ("/engine/layout", {"prompt": user("x")}),
    ("/engine/texts", {"tokens": [1], "after": [2]}),
    ("/engine/commands/update", {"id": 1, "changes": {"temperature": 1}}),
]


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    with serving(dry(blocks=256, max_context=512)) as one:
        yield one


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of the value and of everything inside it."""
    yield above
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield from places(each, (*above, name))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    changed = value.copy()
    changed[place[0]] = replaced(value[place[0]], place[1:], new)
    return changed


def check(path: str, body: Any, answer: httpx.Response) -> None:
    told = f"{path} {json.dumps(body):.300}: {answer.status_code} {answer.text[:400]}"
    assert answer.status_code < 500, told
    if answer.status_code >= 400:
        error = answer.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert 0 < len(message) < 600, told
        assert "\n" not in message, told


@pytest.mark.parametrize(("turn", "turns"), one_row_of(24, [(turn, 24) for turn in range(24)]))
def test_no_value_in_any_place_breaks_a_route(small: Served, turn: int, turns: int) -> None:
    number = 0
    with small.client() as client:
        for path, body in BODIES:
            for place in places(body):
                for value in HOSTILE:
                    number += 1
                    if number % turns == turn:
                        sent = replaced(body, place, value)
                        content, headers = json.dumps(sent), {"content-type": "application/json"}
                        check(path, sent, client.post(path, content=content, headers=headers))
        assert client.get("/health").status_code == 200
    assert small.becomes_idle()


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/completions", {"prompt": "\ud800"}, "prompt"),
        ("/v1/embeddings", {"input": "\ud800"}, "input"),
        ("/v1/embeddings", {"input": ["a", "\ud800"]}, "input[1]"),
        ("/v1/messages", _SHORT | {"messages": user("a"), "system": "\ud800"}, "system"),
        ("/api/embed", {"model": MODEL, "input": ["\ud800"]}, "input"),
        ("/api/embeddings", {"model": MODEL, "prompt": "\ud800"}, "prompt"),
        ("/api/generate", {"model": MODEL, "prompt": "\ud800"}, "prompt"),
        ("/api/generate", {"model": MODEL, "prompt": "a", "system": "\ud800"}, "system"),
        ("/engine/replies", {"prompt": [1], "params": {"stop": ["\ud800"]}}, "stop"),
        ("/engine/replies", {"prompt": [1], "params": {"bad_words": ["\ud800"]}}, "bad_words"),
    ],
)
def test_a_lone_surrogate_is_refused_by_the_name_of_its_field(
    client: httpx.Client, path: str, body: dict[str, Any], place: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post(path, content=json.dumps(body), headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith((f"{place} must be valid Unicode", f"{place}: must be valid Unicode"))


@pytest.mark.parametrize("path", ["/tokenize", "/engine/layout"])
def test_an_answer_of_many_tokens_is_made_beside_the_event_loop(
    client: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = set()
    written = bodies.written

    async def recorded(request: Any, answer: Any) -> Any:
        def recording() -> bytes:
            makers.add(threading.current_thread().name)
            made: bytes = answer()
            return made

        return await written(request, recording)

    module = "openai.tokens" if path == "/tokenize" else "native.layout"
    monkeypatch.setattr(f"engine.server.{module}.written", recorded)
    assert client.post(path, json={"prompt": "the sea"}).status_code == 200
    assert makers
    assert "test-server" not in makers
