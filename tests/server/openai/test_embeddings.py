"""Embeddings over HTTP, on a real model: the vectors of transformers, scaled to length 1."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from engine.api.config import EngineConfig
from engine.api.events import Delta
from engine.host.outbox import merged
from engine.host.packing import packed, unpacked
from engine.server.config import MAX_CHOICES
from engine.server.embedding import unit_vector
from engine.server.http.errors import ApiError
from engine.start import start
from engine.text.tokenizer import Tokenizer
from tests.lazily import lazy
from tests.runner.small import make
from tests.server.conftest import KEY, MODEL, PLAIN, TEMPLATE, Served, dry, serving, vanish
from tests.waiting import becomes

ollama = lazy("ollama")

PATH = "/v1/embeddings"
TEXT = "the cat sat on the mat, then the käse"


@dataclass
class Embedder:
    """A server, and the same weights in transformers."""

    served: Served
    model: Any
    tokenizer: Tokenizer

    def expected(self, ids: list[int], pooling: str = "last", dimensions: int | None = None) -> np.ndarray:
        with torch.inference_mode():
            states = self.model.model(torch.tensor([ids])).last_hidden_state[0]
        vector = (states[-1] if pooling == "last" else states.mean(0))[:dimensions]
        found: np.ndarray = (vector / vector.norm()).numpy()
        return found

    def post(self, **body: Any) -> httpx.Response:
        with self.served.client() as client:
            return client.post(PATH, json=body)

    def vectors(self, given: Any, **body: Any) -> list[list[float]]:
        response = self.post(input=given, **body)
        assert response.is_success, response.text
        entries = response.json()["data"]
        assert [entry["index"] for entry in entries] == [*range(len(entries))]
        return [entry["embedding"] for entry in entries]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    folder = tmp_path_factory.mktemp("llama")
    model = make("llama", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    engine = start(EngineConfig(model=str(folder), device="cpu", blocks=64, max_step_tokens=24))
    with serving(engine) as served:
        yield Embedder(served, model, Tokenizer.load(folder))


def test_a_text_has_the_last_hidden_state_of_transformers(embedder: Embedder) -> None:
    ids = embedder.tokenizer.encode_raw(TEXT)
    response = embedder.post(model=MODEL, input=TEXT, user="me").json()
    [entry] = response.pop("data")
    assert response == {
        "object": "list",
        "model": MODEL,
        "pooling": "last",
        "usage": {
            "prompt_tokens": len(ids),
            "total_tokens": len(ids),
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    assert entry.pop("embedding") == pytest.approx(embedder.expected(ids), abs=1e-4)
    assert entry == {"object": "embedding", "index": 0}


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_every_form_of_input(embedder: Embedder, pooling: str) -> None:
    ids = [embedder.tokenizer.encode_raw(text) for text in (TEXT, "b", "the theme")]
    expected = [embedder.expected(each, pooling) for each in ids]
    for given, count in (([TEXT, "b", "the theme"], 3), (ids, 3), (ids[0], 1), (TEXT, 1)):
        for vector, right in zip(embedder.vectors(given, pooling=pooling), expected[:count], strict=True):
            assert vector == pytest.approx(right, abs=1e-4)


def test_more_inputs_than_a_response_may_have_choices(embedder: Embedder) -> None:
    given = [[n % 7 + 3, 5] for n in range(MAX_CHOICES + 3)]
    expected = [embedder.expected([n + 3, 5]) for n in range(7)]
    for n, vector in enumerate(embedder.vectors(given)):
        assert vector == pytest.approx(expected[n % 7], abs=1e-4)


def test_the_official_client_reads_base64(embedder: Embedder) -> None:
    ids = embedder.tokenizer.encode_raw(TEXT)
    embeddings = embedder.served.openai.embeddings
    found = embeddings.create(model=MODEL, input=[TEXT, "b"])
    assert found.data[0].embedding == pytest.approx(embedder.expected(ids), abs=1e-4)
    assert found.usage.prompt_tokens == len(ids) + 1
    plain = embeddings.create(
        model=MODEL, input=TEXT, encoding_format="float", extra_body={"pooling": "mean"}
    )
    assert plain.data[0].embedding == pytest.approx(embedder.expected(ids, "mean"), abs=1e-4)
    coded = embedder.vectors(TEXT, encoding_format="base64")[0]
    assert isinstance(coded, str)
    assert np.frombuffer(base64.b64decode(coded), "<f4") == pytest.approx(embedder.expected(ids), abs=1e-4)


def test_fewer_dimensions_are_scaled_again(embedder: Embedder) -> None:
    ids = embedder.tokenizer.encode_raw(TEXT)
    [vector] = embedder.vectors(TEXT, dimensions=5)
    assert vector == pytest.approx(embedder.expected(ids, dimensions=5), abs=1e-4)
    refusal = embedder.post(input=TEXT, dimensions=1000)
    assert refusal.status_code == 400
    assert refusal.json()["error"]["message"] == "dimensions must be at most 64 for this model, got 1000"


def test_a_vector_of_zeros_stays() -> None:
    assert unit_vector(bytes(8)).tolist() == [0.0, 0.0]
    with pytest.raises(ApiError):
        unit_vector(bytes(8), 3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [3, "a"]}, "input"),
        ({"input": [100_000]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "stream": True}, "stream"),
    ],
)
def test_what_cannot_be_is_refused_by_name(embedder: Embedder, fields: dict[str, Any], param: str) -> None:
    response = embedder.post(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].partition("[")[0] == param


class TestOllama:
    def post(self, embedder: Embedder, path: str = "/api/embed", **body: Any) -> httpx.Response:
        with embedder.served.client() as client:
            return client.post(path, json={"model": MODEL} | body)

    def test_its_client_gets_the_same_vectors(self, embedder: Embedder) -> None:
        client = ollama.Client(embedder.served.url, headers={"Authorization": f"Bearer {KEY}"}, verify=PLAIN)
        ids = [embedder.tokenizer.encode_raw(text) for text in (TEXT, "b")]
        found = client.embed(MODEL, [TEXT, "b"], keep_alive="5m")
        for vector, each in zip(found.embeddings, ids, strict=True):
            assert list(vector) == pytest.approx(embedder.expected(each), abs=1e-4)
        assert found.prompt_eval_count == len(ids[0]) + len(ids[1]) and found.total_duration
        assert list(client.embed(MODEL, TEXT, dimensions=5).embeddings[0]) == pytest.approx(
            embedder.expected(ids[0], dimensions=5), abs=1e-4
        )
        assert client.embeddings(MODEL, TEXT).embedding == pytest.approx(embedder.expected(ids[0]), abs=1e-4)

    def test_a_long_text_is_cut_unless_truncate_is_false(self, embedder: Embedder) -> None:
        longest = embedder.served.host.snapshot().max_context - 1
        ids = embedder.tokenizer.encode_raw("b" * (longest + 9))
        assert len(ids) > longest
        [vector] = self.post(embedder, input="b" * (longest + 9)).json()["embeddings"]
        assert vector == pytest.approx(embedder.expected(ids[:longest]), abs=1e-4)
        refusal = self.post(embedder, input="b" * (longest + 9), truncate=False)
        assert refusal.status_code == 400 and str(longest) in refusal.json()["error"]

    def test_bad_input_is_refused_in_its_form(self, embedder: Embedder) -> None:
        assert self.post(embedder, input=[]).json()["embeddings"] == []
        for fields, status, sentence in (
            ({"input": ""}, 400, "input must not be an empty text"),
            ({}, 400, "input"),
            ({"input": ["a"] * 2049}, 400, "input"),
            ({"input": "a", "model": "x"}, 404, "'x'"),
            ({"input": "a", "dimensions": 1000}, 400, "dimensions must be at most 64"),
        ):
            refusal = self.post(embedder, **fields)
            assert refusal.status_code == status and sentence in refusal.json()["error"]
        assert self.post(embedder, "/api/embeddings", prompt="").status_code == 400

    def test_a_disconnected_client_ends_it(self, chunked: Served) -> None:
        vanish(chunked, "/api/embed", {"model": MODEL, "input": ["a b " * 2000] * 2})


def test_it_takes_places_like_other_requests(slow: Served) -> None:
    fields = {"input": [[7] * 40 for _ in range(40)], "deadline_ms": 50, "priority": 1}
    with slow.client() as client:
        found = client.post(PATH, json=fields)
        assert found.is_success and len(found.json()["data"]) == 40
        assert client.post(PATH, json={"input": "a", "priority": -99}).status_code == 400
        assert client.post(PATH, json={"input": "a", "model": "x"}).status_code == 404
    assert slow.becomes_idle()


@pytest.fixture(scope="module")
def chunked() -> Iterator[Served]:
    """A server that takes seconds to read a long prompt."""
    with serving(dry(rate=50, max_step_tokens=16)) as served:
        yield served


LONG = [7] * 5000


def test_a_disconnected_client_ends_it(chunked: Served) -> None:
    vanish(chunked, PATH, {"input": [LONG, LONG]})


def test_an_abort_is_an_error(chunked: Served) -> None:
    with chunked.client() as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, PATH, json={"input": LONG})
        assert becomes(lambda: chunked.host.snapshot().requests)
        [request] = chunked.host.snapshot().requests
        assert client.post(f"/engine/requests/{request.id}/abort").is_success
        found = answer.result()
    assert (found.status_code, found.json()["error"]["code"]) == (503, "aborted")


def test_a_vector_passes_the_engines_process_whole() -> None:
    deltas = [Delta(4, pooled=b"\x00\x01\xff\x7f"), Delta(4, (1,)), Delta(4, (2,), "x")]
    kept, joined = merged(deltas)
    assert kept == deltas[0] and joined == Delta(4, (1, 2), "x")
    assert [delta for _, delta in unpacked(json.loads(json.dumps(packed([(9, kept)]))))] == [kept]
