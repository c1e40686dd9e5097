"""/tokenize and /detokenize, with the fields that vLLM's clients send."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import Served, saying, serving, user
from tests.server.requests.test_fields import refused

TEMPLATE = (
    "{{ bos_token }}{% if mood is defined %}{{ mood }}!{% endif %}"
    "{% for tool in tools or [] %}{{ tool.function.name }} <tool_call>{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
OPEN = [*user("hi"), {"role": "assistant", "content": "Once upon a "}]
WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model whose prompts start with a token."""
    with serving(saying(tmp_path_factory.mktemp("model"), "x", TEMPLATE, starts=True)) as served:
        yield served


@pytest.fixture(scope="module")
def there(model: Served) -> Iterator[httpx.Client]:
    with model.client() as client:
        yield client


def text_of(client: httpx.Client, **fields: Any) -> str:
    """Return the text of a prompt's tokens."""
    found = client.post("/tokenize", json=fields)
    assert found.is_success, found.text
    assert found.json()["count"] == len(found.json()["tokens"])
    text: str = client.post("/detokenize", json={"tokens": found.json()["tokens"]}).json()["prompt"]
    return text


def test_tokens_of_a_prompt_and_back(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"prompt": "the sea is old", "add_special_tokens": False}).json()
    assert found["count"] == len(found["tokens"]) > 2
    assert found["max_model_len"] > 100
    assert found["token_strs"] is None
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": "the sea is old"}


def test_a_token_outside_the_vocabulary_is_named(client: httpx.Client) -> None:
    problem = refused(client.post("/v1/completions", json={"prompt": [5, 99999]}))["message"]
    assert "token id 99999 is out of range" in problem
    error = refused(client.post("/detokenize", json={"tokens": [5, 99999]}))
    assert (error["message"], error["param"]) == (problem.replace("prompt:", "tokens:"), "tokens")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt": "sea"}, "<s>sea"),
        ({"prompt": "sea", "add_special_tokens": True}, "<s>sea"),
        ({"prompt": "sea", "add_special_tokens": False}, "sea"),
        ({"prompt": ""}, "<s>"),
        ({"messages": user("hi")}, "<s>user: hi\nassistant:"),
        ({"messages": user("hi"), "add_special_tokens": True}, "<s><s>user: hi\nassistant:"),
        ({"messages": user("hi"), "add_generation_prompt": False}, "<s>user: hi\n"),
        (
            {"messages": OPEN, "continue_final_message": True, "add_generation_prompt": False},
            "<s>user: hi\nassistant: Once upon a ",
        ),
        ({"messages": user("hi"), "chat_template_kwargs": {"mood": "joy"}}, "<s>joy!user: hi\nassistant:"),
        ({"messages": user("hi"), "tools": [WEATHER]}, "<s>weather <tool_call>user: hi\nassistant:"),
        ({"messages": user("hi"), "tools": None, "chat_template": None}, "<s>user: hi\nassistant:"),
    ],
)
def test_a_prompt_as_vllm_makes_it(there: httpx.Client, fields: dict[str, Any], text: str) -> None:
    assert text_of(there, **fields) == text


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [WEATHER]},
        {"chat_template_kwargs": {"mood": "joy"}},
        {"messages": OPEN, "continue_final_message": True},
    ],
)
def test_a_chat_reads_the_same_tokens(there: httpx.Client, more: dict[str, Any]) -> None:
    asked = {"messages": user("hi"), **more}
    chat = there.post("/v1/chat/completions", json={**asked, "max_tokens": 1, "return_token_ids": True})
    assert chat.json()["prompt_token_ids"] == there.post("/tokenize", json=asked).json()["tokens"]


def test_the_names_of_tokens(there: httpx.Client) -> None:
    found = there.post("/tokenize", json={"prompt": "a é", "return_token_strs": True}).json()
    assert found["token_strs"] == ["<s>", "a", "Ġ", "Ã", "©"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": user("b")}, "prompt"),
        ({"prompt": "a", "tools": [WEATHER]}, "tools"),
        ({"prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": user("b"), "continue_final_message": True}, "continue_final_message"),
        ({"messages": user("b"), "tools": [{"type": "x"}]}, "tools[0]"),
        ({"messages": user("b"), "chat_template": "x"}, "chat_template"),
        ({"messages": user("b"), "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    ],
)
def test_a_bad_request_names_the_field(there: httpx.Client, fields: dict[str, Any], param: str) -> None:
    assert refused(there.post("/tokenize", json=fields))["param"] == param


def test_another_model_is_refused(client: httpx.Client) -> None:
    assert client.post("/tokenize", json={"prompt": "a", "model": "other"}).status_code == 404
