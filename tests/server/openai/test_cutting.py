"""vLLM's truncate_prompt_tokens: prompts that are cut, and what of them is read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.server.conftest import Served, saying, serving, user

CONTEXT = 64  # of the model
TEXT = "abcdefghijkl"
LONG = "z" * 200
TEXTS, CHATS = "/v1/completions", "/v1/chat/completions"


@dataclass
class Reader:
    """A server that notes the prompts its engine gets."""

    served: Served
    seen: list[str]

    def post(self, path: str, **fields: Any) -> httpx.Response:
        self.seen.clear()
        with self.served.client() as client:
            return client.post(path, json=fields)

    def read(self, path: str, **fields: Any) -> str:
        """Return the prompt that the engine got, with ^ for a start token, which has no text."""
        answer = self.post(path, **fields)
        assert answer.is_success, answer.text
        [prompt] = self.seen
        started = answer.json()["usage"]["prompt_tokens"] - len(prompt)
        return "^" * started + prompt


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    seen: list[str] = []
    engine = saying(tmp_path_factory.mktemp("model"), "yes", seen=seen, starts=True, max_context=CONTEXT)
    with serving(engine) as served:
        yield Reader(served, seen)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 4}, "ijkl"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "ijkl"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, "^abc"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right", "add_special_tokens": False}, "abcd"),
        ({"truncate_prompt_tokens": 12}, TEXT),
        ({"truncate_prompt_tokens": 13}, "^" + TEXT),
        ({"truncate_prompt_tokens": 40}, "^" + TEXT),
        ({"truncate_prompt_tokens": -1}, "^" + TEXT),
        ({"truncation_side": "right"}, "^" + TEXT),
        ({"truncate_prompt_tokens": None}, "^" + TEXT),
        ({"truncate_prompt_tokens": -1, "max_tokens": 3, "prompt": LONG}, "z" * (CONTEXT - 3)),
        ({"truncate_prompt_tokens": -1, "max_tokens": 0, "prompt": LONG}, "z" * (CONTEXT - 1)),
        ({"truncate_prompt_tokens": -1, "prompt": LONG}, "z" * (CONTEXT - 16)),
        ({"truncate_prompt_tokens": -1, "prompt": LONG, "said": [5] * 20, "max_tokens": 21}, "z" * 43),
    ],
)
def test_a_completion_reads_what_is_left(reader: Reader, fields: dict[str, Any], kept: str) -> None:
    assert reader.read(TEXTS, **{"prompt": TEXT} | fields) == kept


def test_each_prompt_is_cut_and_token_ids_too(reader: Reader) -> None:
    ids = reader.post("/tokenize", prompt=TEXT, add_special_tokens=False).json()["tokens"]
    assert reader.read(TEXTS, prompt=ids, truncate_prompt_tokens=2) == "kl"
    reader.post(TEXTS, prompt=[TEXT, "xyz"], truncate_prompt_tokens=2)
    assert sorted(reader.seen) == ["kl", "yz"]


def test_echo_is_of_what_was_read(reader: Reader) -> None:
    answer = reader.post(TEXTS, prompt=TEXT, truncate_prompt_tokens=3, echo=True, max_tokens=3)
    assert answer.json()["choices"][0]["text"] == "jklyes"
    answer = reader.post(TEXTS, prompt=TEXT, echo=True, max_tokens=3)
    assert answer.json()["choices"][0]["text"] == TEXT + "yes"


@pytest.mark.parametrize(  # "an" is one token
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 12}, "kl\nassistant:"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, "user: "),
        ({"truncate_prompt_tokens": -1, "messages": user(LONG)}, "z" * 53 + "\nassistant:"),
        ({"truncate_prompt_tokens": -1, "messages": user(LONG), "max_tokens": 9}, "z" * 45 + "\nassistant:"),
    ],
)
def test_a_chat_reads_what_is_left(reader: Reader, fields: dict[str, Any], kept: str) -> None:
    assert reader.read(CHATS, **{"messages": user(TEXT)} | fields) == kept


def test_a_reply_that_takes_the_whole_context_is_what_is_refused(reader: Reader) -> None:
    response = reader.post(TEXTS, prompt=TEXT, truncate_prompt_tokens=-1, max_tokens=CONTEXT)
    assert response.status_code == 400 and "lower max_tokens" in response.json()["error"]["message"]


def test_tokenize_returns_what_a_request_would_read(reader: Reader) -> None:
    def text(**fields: Any) -> str:
        tokens = reader.post("/tokenize", **fields).json()["tokens"]
        return str(reader.post("/detokenize", tokens=tokens).json()["prompt"])

    assert text(prompt=TEXT, truncate_prompt_tokens=4) == "ijkl"
    assert text(prompt=LONG, truncate_prompt_tokens=-1) == "z" * (CONTEXT - 1)
    assert text(messages=user(TEXT), truncate_prompt_tokens=9) == "assistant:"
    assert text(prompt=TEXT, truncate_prompt_tokens=3, truncation_side="right") == "<s>ab"


def test_embeddings_keep_the_beginning(reader: Reader) -> None:
    assert reader.read("/v1/embeddings", input=TEXT, truncate_prompt_tokens=4) == "^abc"
    assert reader.read("/v1/embeddings", input=LONG, truncate_prompt_tokens=-1) == "^" + "z" * (CONTEXT - 2)
    left = {"truncate_prompt_tokens": 4, "truncation_side": "left"}
    assert reader.read("/v1/embeddings", input=TEXT, **left) == "ijkl"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TEXTS, {"prompt": TEXT, "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        (TEXTS, {"prompt": TEXT, "truncate_prompt_tokens": CONTEXT}, "truncate_prompt_tokens"),
        (TEXTS, {"prompt": TEXT, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (TEXTS, {"prompt": TEXT, "truncate_prompt_tokens": 49}, "truncate_prompt_tokens"),
        (TEXTS, {"prompt": TEXT, "truncate_prompt_tokens": 4, "truncation_side": ""}, "truncation_side"),
        (CHATS, {"messages": user(TEXT), "truncate_prompt_tokens": "4"}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": TEXT, "truncate_prompt_tokens": CONTEXT}, "truncate_prompt_tokens"),
        ("/tokenize", {"prompt": TEXT, "truncate_prompt_tokens": CONTEXT}, "truncate_prompt_tokens"),
        ("/v1/responses", {"input": TEXT, "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(
    reader: Reader, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = reader.post(path, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not reader.seen


def test_the_most_without_a_reply_leaves_no_room_for_one(reader: Reader) -> None:
    def refusal(path: str, **fields: Any) -> Any:
        return reader.post(path, truncate_prompt_tokens=CONTEXT, **fields).json()["error"]["message"]

    limit = f"truncate_prompt_tokens must be at most {CONTEXT - 1}"
    for path, fields in (("/v1/embeddings", {"input": TEXT}), ("/tokenize", {"prompt": TEXT})):
        assert refusal(path, **fields) == f"{limit} for this model, got {CONTEXT}"
    words = refusal(TEXTS, prompt=TEXT, max_tokens=1)
    assert words == f"{limit}, which leaves room for the reply, got {CONTEXT}"
