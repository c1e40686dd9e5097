"""Log-probabilities of prompts over HTTP: OpenAI's echo and vLLM's prompt_logprobs, on a real model."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import torch

from engine.api.config import EngineConfig
from engine.start import start
from engine.text.tokenizer import Tokenizer
from tests.runner.small import make
from tests.server.conftest import MODEL, TEMPLATE, Served, serving, user

TEXT = "the cat sat on the mat, then the käse"


@dataclass
class Reader:
    """A server, and the same weights in transformers."""

    served: Served
    model: Any
    tokenizer: Tokenizer

    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """Return the log-probabilities after each token but the last."""
        with torch.inference_mode():
            found: torch.Tensor = self.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
            return found

    def of_tokens(self, ids: list[int]) -> list[float]:
        return self.logprobs(ids).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    def post(self, path: str, **body: Any) -> httpx.Response:
        with self.served.client() as client:
            return client.post(path, json={"temperature": 0, "ignore_eos": True, **body})

    def complete(self, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
        response = self.post("/v1/completions", prompt=prompt, **fields)
        assert response.is_success, response.text
        choices: list[dict[str, Any]] = response.json()["choices"]
        return choices


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("llama")
    model = make("llama", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    engine = start(EngineConfig(model=str(folder), device="cpu", blocks=64, max_step_tokens=24))
    with serving(engine) as served:
        yield Reader(served, model, Tokenizer.load(folder))


def test_echo_returns_the_prompt_with_its_log_probabilities(reader: Reader) -> None:
    ids = reader.tokenizer.encode_raw(TEXT)
    [choice] = reader.complete(TEXT, echo=True, logprobs=2, max_tokens=0)
    found = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "length")
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert found["token_logprobs"][1:] == pytest.approx(reader.of_tokens(ids), abs=1e-4)
    likeliest = reader.logprobs(ids).max(-1).values.tolist()
    assert [max(top.values()) for top in found["top_logprobs"][1:]] == pytest.approx(likeliest, abs=1e-4)
    assert len(found["tokens"]) == len(found["text_offset"]) == len(ids)
    starts = [(token, at) for token, at in zip(found["tokens"], found["text_offset"], strict=True)]
    assert all(TEXT.startswith(token, at) for token, at in starts if "\ufffd" not in token)


def test_the_reply_follows_the_prompt(reader: Reader) -> None:
    ids = [1, *reader.tokenizer.encode_raw(TEXT)]
    [plain] = reader.complete(ids, max_tokens=5, logprobs=0)
    [choice] = reader.complete(ids, max_tokens=5, logprobs=0, echo=True, prompt_logprobs=3)
    assert choice["text"] == TEXT + plain["text"], "a control token has no text"
    count, logprobs = len(ids), choice["logprobs"]
    assert {name: each[count:] for name, each in logprobs.items() if name != "text_offset"} == {
        name: each for name, each in plain["logprobs"].items() if name != "text_offset"
    }
    assert logprobs["text_offset"][count] == len(TEXT)
    assert all(len(top) == 1 for top in logprobs["top_logprobs"][1:]), "logprobs counts for echo"


def test_echo_without_log_probabilities(reader: Reader) -> None:
    choices = reader.complete([TEXT, "b"], max_tokens=3, echo=True, n=2)
    assert [each["logprobs"] for each in choices] == [None] * 4
    replies = reader.complete([TEXT, "b"], max_tokens=3, n=2)
    prompts = [TEXT, TEXT, "b", "b"]
    assert [each["text"] for each in choices] == [
        prompt + each["text"] for prompt, each in zip(prompts, replies, strict=True)
    ]


def test_a_prompt_of_one_token(reader: Reader) -> None:
    [choice] = reader.complete([70], max_tokens=0, echo=True, logprobs=1, prompt_logprobs=1)
    assert choice["logprobs"]["token_logprobs"] == choice["logprobs"]["top_logprobs"] == [None]
    assert choice["prompt_logprobs"] == [None]


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_begins_with_the_prompt(reader: Reader, n: int) -> None:
    fields = {"prompt": [TEXT, "the end"], "echo": True, "logprobs": 1, "max_tokens": 4, "n": n}
    whole = reader.complete(fields.pop("prompt"), **fields)
    response = reader.post("/v1/completions", prompt=[TEXT, "the end"], stream=True, **fields)
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    entries = [entry for line in lines for entry in json.loads(line)["choices"]]
    for choice in whole:
        parts = [each for each in entries if each["index"] == choice["index"]]
        prompt = TEXT if choice["index"] < n else "the end"
        assert parts[0]["text"].startswith(prompt)
        assert "".join(each["text"] for each in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [one for each in parts for one in each["logprobs"][name]] == values
    assert len(whole) == 2 * n


def test_prompt_logprobs_have_the_form_of_vllm(reader: Reader) -> None:
    ids = reader.tokenizer.encode_raw(TEXT)
    [choice] = reader.complete(TEXT, prompt_logprobs=2, max_tokens=1)
    first, *rest = choice["prompt_logprobs"]
    assert first is None and choice["logprobs"] is None and not choice["text"].startswith(TEXT)
    values = reader.logprobs(ids)
    for token, row, found in zip(ids[1:], values, rest, strict=True):
        rank = int((row > row[token]).sum()) + 1
        assert found.keys() == {str(token), *map(str, row.topk(2).indices.tolist())}
        for each, entry in found.items():
            assert entry["logprob"] == pytest.approx(row[int(each)].item(), abs=1e-4)
        assert found[str(token)]["rank"] == rank
        assert sorted(entry["rank"] for entry in found.values()) == sorted({1, 2, rank})
        assert found[str(token)]["decoded_token"] in TEXT + "\ufffd"


def test_prompt_logprobs_of_a_chat(reader: Reader) -> None:
    body = {"messages": user(TEXT), "prompt_logprobs": 0, "max_tokens": 2, "return_token_ids": True, "n": 2}
    answer = reader.post("/v1/chat/completions", **body).json()
    ids = answer["prompt_token_ids"]
    found = answer["prompt_logprobs"]
    assert found[0] is None
    assert [next(iter(each)) for each in found[1:]] == [str(token) for token in ids[1:]]
    assert [each[str(token)]["logprob"] for token, each in zip(ids[1:], found[1:], strict=True)] == (
        pytest.approx(reader.of_tokens(ids), abs=1e-4)
    )


def test_a_prompt_without_a_reply(reader: Reader) -> None:
    response = reader.post("/v1/completions", prompt=TEXT, max_tokens=0, n=2).json()
    assert [(each["text"], each["finish_reason"]) for each in response["choices"]] == [("", "length")] * 2
    assert response["usage"]["completion_tokens"] == 0


def test_the_openai_package_reads_it(reader: Reader) -> None:
    asked = {"model": MODEL, "prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": 0}
    whole = reader.served.openai.completions.create(**asked)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    ids = reader.tokenizer.encode_raw(TEXT)
    assert sum(each or 0 for each in logprobs.token_logprobs) == pytest.approx(
        sum(reader.of_tokens(ids)), abs=1e-3
    )
    streamed = list(reader.served.openai.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == TEXT
