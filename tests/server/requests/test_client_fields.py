"""The fields that clients of each API can send: those of the installed clients, and vLLM's."""

import importlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from engine.server.anthropic.schema import CountRequest, MessagesRequest
from engine.server.ollama.schema import OllamaChatRequest, OllamaGenerateRequest
from engine.server.openai.embeddings import EmbeddingRequest
from engine.server.openai.responses_api.schema import ResponsesRequest
from engine.server.openai.schema import ChatRequest, CompletionRequest
from tests.server.conftest import saying, serving, user
from tests.server.requests.test_fields import refused

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

# What a client can send and these routes refuse, or for Ollama's ignore.
REFUSED: list[tuple[type[BaseModel], str, str, str]] = [
    (
        ChatRequest,
        "openai.types.chat.completion_create_params",
        "CompletionCreateParamsNonStreaming",
        "audio function_call functions moderation prediction web_search_options",
    ),
    (
        CompletionRequest,
        "openai.types.completion_create_params",
        "CompletionCreateParamsNonStreaming",
        "suffix",
    ),
    (EmbeddingRequest, "openai.types.embedding_create_params", "EmbeddingCreateParams", ""),
    (
        ResponsesRequest,
        "openai.types.responses.response_create_params",
        "ResponseCreateParamsNonStreaming",
        "access_programs background_options context_management image moderation",
    ),
    (
        MessagesRequest,
        "anthropic.types.message_create_params",
        "MessageCreateParamsNonStreaming",
        "container",
    ),
    (CountRequest, "anthropic.types.message_count_tokens_params", "MessageCountTokensParams", ""),
    (OllamaChatRequest, "ollama._types", "ChatRequest", "keep_alive"),
    (OllamaGenerateRequest, "ollama._types", "GenerateRequest", "height keep_alive steps width"),
]


def fields_of(kind: Any) -> set[str]:
    """Return the fields of a typed dictionary or a model, with those it inherits."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {*kind.model_fields}
    bases = (base for base in getattr(kind, "__orig_bases__", ()) if hasattr(base, "__annotations__"))
    return {*kind.__annotations__}.union(*map(fields_of, bases))


@pytest.mark.parametrize(("ours", "module", "theirs", "names"), REFUSED)
def test_which_fields_are_left_out_is_known(
    ours: type[BaseModel], module: str, theirs: str, names: str
) -> None:
    sent = fields_of(getattr(importlib.import_module(module), theirs))
    assert sent - {*ours.model_fields} == {*names.split()}


RAG = (
    "{% for d in documents or [] %}{{ d.title }}={{ d.text }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content or '' }}{{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}quick{% endif %}"
)
SAID = "<think>hm</think>yes"


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, prompts: list[str]) -> Iterator[httpx.Client]:
    """A model whose template has documents, and whose plain prompts start with a token."""
    engine = saying(tmp_path_factory.mktemp("model"), SAID, RAG, prompts, starts=True)
    with serving(engine) as served, served.client() as client:
        yield client


def ask(client: httpx.Client, path: str = CHAT, **fields: Any) -> Any:
    start = {"messages": user("hi")} if path == CHAT else {"prompt": "hi"}
    answer = client.post(path, json=start | {"max_tokens": 40} | fields)
    assert answer.is_success, answer.text
    return answer.json()


def test_fields_without_effect(model: httpx.Client) -> None:
    plain = ask(model)["choices"]
    more = {"session_id": "a", "spaces_between_special_tokens": False, "verbosity": "low"}
    assert ask(model, **more, add_special_tokens=False)["choices"] == plain


def test_documents_are_a_variable_of_the_template(model: httpx.Client, prompts: list[str]) -> None:
    ask(model, documents=[{"title": "a", "text": "b"}, {"title": "c", "text": "d"}])
    assert prompts[-1] == "a=b;c=d;user: hi\n"
    bad = model.post(CHAT, json={"messages": user("hi"), "documents": [{"title": 5}]})
    assert refused(bad)["param"] == "documents[0].title"


def test_no_effort_means_no_thinking(model: httpx.Client, prompts: list[str]) -> None:
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    for fields, end in (({}, ""), ({"reasoning_effort": "low"}, ""), ({"reasoning_effort": "none"}, "quick")):
        ask(model, **fields)
        assert prompts[-1] == f"user: hi\n{end}"
        ask(model, **fields, **kwargs)
        assert prompts[-1] == "user: hi\n"


def test_the_newer_name_of_reasoning_in_messages(model: httpx.Client, prompts: list[str]) -> None:
    turn = {"role": "assistant", "content": "b"}
    for more in ({"reasoning": "a"}, {"reasoning_content": "a", "reasoning": "c"}):
        ask(model, messages=[*user("hi"), turn | more, *user("go on")])
        assert "assistant: ab\n" in prompts[-1]
    ask(model, messages=[*user("hi"), turn | {"reasoning": {"effort": "low"}}, *user("go on")])
    assert "assistant: b\n" in prompts[-1]


def test_a_text_without_start_tokens(model: httpx.Client) -> None:
    for start, text in ((None, "<s>hi"), (True, "<s>hi"), (False, "hi")):
        found = ask(model, TEXT, add_special_tokens=start, return_token_ids=True)["choices"][0]
        given = model.post("/detokenize", json={"tokens": found["prompt_token_ids"]}).json()
        assert given == {"prompt": text}
    echoed = ask(model, TEXT, prompt=["one", "two"], add_special_tokens=False, echo=True)
    assert [each["text"] for each in echoed["choices"]] == [f"one{SAID}", f"two{SAID}"]


def test_reasoning_is_left_out(model: httpx.Client) -> None:
    message = ask(model)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    message = ask(model, include_reasoning=False)["choices"][0]["message"]
    assert "reasoning_content" not in message and message["content"] == "yes"
    body = {"messages": user("hi"), "stream": True, "include_reasoning": False}
    with model.stream("POST", CHAT, json=body) as reply:
        text = reply.read().decode()
    assert "reasoning" not in text and '"content":"y' in text


def test_tokens_by_their_ids(model: httpx.Client) -> None:
    named = ask(model, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True)
    [choice] = named["choices"]
    names = [f"token_id:{token}" for token in choice["token_ids"]]
    assert [each["token"] for each in choice["logprobs"]["content"]] == names
    assert all(each["top_logprobs"][0]["token"][:9] == "token_id:" for each in choice["logprobs"]["content"])
    [choice] = ask(model, TEXT, logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True)["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


def test_the_id_of_a_response(model: httpx.Client) -> None:
    assert ask(model, request_id="mine-1")["id"] == "chatcmpl-mine-1"
    bad = model.post(CHAT, json={"messages": user("hi"), "request_id": "a b"})
    assert refused(bad)["param"] == "request_id"


def test_a_cache_salt_separates_prefixes(model: httpx.Client) -> None:
    def cached(salt: str | None) -> int:
        count: int = ask(model, TEXT, prompt=[7] * 200, cache_salt=salt)["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        return count

    assert cached("a") == 0
    assert cached("b") == 0
    assert cached(None) == 0
    assert cached("a") > 100
