"""LoRA adapters over HTTP: named as models, loaded and dropped while the server runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api.config import EngineConfig
from engine.start import start
from tests.models.lora import random_adapter
from tests.runner.small import make
from tests.server.conftest import MODEL, Served, serving

ASK = {"prompt": "the quick brown", "temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    base = folder / "base"
    base.mkdir()
    make("llama", base)
    adapters = {name: random_adapter(folder / name, base, seed=at) for at, name in enumerate("ab")}
    return {"base": base, **adapters}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Iterator[Served]:
    one = f"first={folders['a']}"
    engine = start(EngineConfig(model=str(folders["base"]), device="cpu", blocks=64, seed=0, adapters=(one,)))
    with serving(engine, aliases=("other",)) as made:
        yield made


def text(served: Served, model: str) -> str:
    with served.client() as client:
        answer = client.post("/v1/completions", json=ASK | {"model": model}).json()
    assert answer["model"] == model
    found: str = answer["choices"][0]["text"]
    return found


def names(served: Served) -> list[str]:
    with served.client() as client:
        return [each["id"] for each in client.get("/v1/models").json()["data"]]


def test_an_adapter_is_a_model(served: Served) -> None:
    assert names(served) == [MODEL, "other", "first"]
    with served.client() as client:
        assert client.get("/v1/models/first").json()["parent"] == MODEL
        assert "parent" not in client.get("/v1/models/other").json()
        assert [each["name"] for each in client.get("/api/tags").json()["models"]] == names(served)
    assert text(served, "first") != text(served, MODEL) == text(served, "other")


def test_every_api_takes_its_name(served: Served) -> None:
    with served.client() as client:
        plain = {"options": {"temperature": 0, "num_predict": 8}, "prompt": ASK["prompt"], "raw": True}
        answers = [
            client.post("/api/generate", json=plain | {"model": name, "stream": False}).json()["response"]
            for name in ("first:latest", "first", MODEL)
        ]
        assert answers[0] == answers[1] != answers[2]
        vectors = [
            client.post("/v1/embeddings", json={"model": name, "input": "abc"}).json()["data"]
            for name in ("first", MODEL)
        ]
        assert vectors[0] != vectors[1]
        for name, ours in zip(("first", MODEL), vectors, strict=True):
            answer = client.post("/api/embed", json={"model": name, "input": "abc"}).json()
            assert answer["embeddings"][0] == ours[0]["embedding"]
        body = {"prompt": ASK["prompt"], "adapter": "first", "params": {"temperature": 0, "max_tokens": 8}}
        assert client.post("/engine/replies", json=body).status_code == 201
        refused = client.post("/engine/replies", json=body | {"adapter": "none"})
        assert refused.status_code == 404 and "no adapter 'none' is loaded" in refused.text
        unknown = client.post("/v1/completions", json=ASK | {"model": "second"})
        assert unknown.status_code == 404
        problem = unknown.json()["error"]
        assert problem["code"] == "model_not_found" and "'test-model', 'other', 'first'" in problem["message"]


def test_loading_and_dropping(served: Served, folders: dict[str, Path]) -> None:
    with served.client() as client:
        path = "/engine/adapters"
        loaded = client.post(path, json={"name": "org/second", "path": str(folders["b"])})
        assert loaded.status_code == 204, loaded.text
        assert names(served) == [MODEL, "other", "first", "org/second"]
        assert len({text(served, name) for name in (MODEL, "first", "org/second")}) == 3
        again = client.post(path, json={"name": "first", "path": str(folders["b"])})
        assert again.status_code == 400 and "already loaded" in again.text
        for name in (MODEL, "other"):  # a request with it means the model
            taken = client.post(path, json={"name": name, "path": str(folders["b"])})
            assert taken.status_code == 400 and f"'{name}' is the model's name" in taken.text
        wrong = client.post(path, json={"name": "third", "path": str(folders["base"])})
        assert wrong.status_code == 400 and "holds no adapter_config.json" in wrong.text
        assert client.delete(f"{path}/org/second").status_code == 204
        for name in ("org/second", ""):
            assert client.delete(f"{path}/{name}").status_code == 404
        assert names(served) == [MODEL, "other", "first"]
