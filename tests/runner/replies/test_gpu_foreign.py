"""Models that transformers runs on a GPU: their steps in graphs give what they give on a CPU."""

import logging
from pathlib import Path
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.serving.engine import Engine
from engine.start import start
from tests.models.test_bridge import BRIDGED, reference
from tests.outputs import Output
from tests.quant.changing import switch
from tests.runner.letters import VOCAB, byte_tokenizer
from tests.runner.small import alone, ask, drain

pytestmark = pytest.mark.cuda

PROMPTS = [[1, *range(60, 100)], [1, *range(70, 75)], [1, *range(61, 90)]]


def written(name: str, folder: Path) -> Path:
    family, changes = BRIDGED[name]
    reference(family, changes | {"vocab_size": VOCAB, "max_position_embeddings": 256}, folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def on_gpu(folder: Path, **config: Any) -> Engine:
    plain: dict[str, Any] = {"device": "cuda", "blocks": 64, "seed": 0}
    return start(EngineConfig(model=str(folder), **plain | config))


def replies(engine: Engine) -> list[list[int]]:
    outputs: list[Output] = [ask(engine, prompt)[1] for prompt in PROMPTS]
    drain(engine)
    return [each.tokens for each in outputs]


@pytest.mark.parametrize("name", ["gpt2", "opt", "neox", "phi", "olmo", "falcon", "apertus"])
def test_replies_in_graphs_are_those_of_a_cpu(name: str, tmp_path: Path) -> None:
    engine = on_gpu(written(name, tmp_path))
    assert engine.runner.graph_sizes and engine.runner.graphs
    expected = [alone(tmp_path, prompt).tokens for prompt in PROMPTS]
    assert replies(engine) == expected
    assert replies(engine) == expected, "now all graphs are captured"
    engine.set_switch("graphs", False)
    assert replies(engine) == expected


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_quantized_products_run_in_graphs(scheme: str, tmp_path: Path) -> None:
    config = {"quantization": scheme, "dtype": "bfloat16", "prefix_cache": False}
    engine = on_gpu(written("phi", tmp_path), **config)
    assert engine.runner.graph_sizes and engine.snapshot().quantization == scheme
    found = replies(engine)
    assert replies(engine) == found, "now all graphs are captured"
    for each in ("none", scheme):
        switch(engine, each)
    assert replies(engine) == found


def test_a_model_that_waits_for_the_device_runs_without_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    plain = GPT2MLP.forward
    monkeypatch.setattr(GPT2MLP, "forward", lambda self, x: plain(self, x * (x.sum().item() != 1e9)))
    with caplog.at_level(logging.WARNING, "minichat.engine"):
        engine = on_gpu(written("gpt2", tmp_path))
    assert "gpt2 models run without CUDA graphs: a step cannot be captured" in caplog.text
    assert not engine.runner.graph_sizes
    assert replies(engine) == [alone(tmp_path, prompt).tokens for prompt in PROMPTS]
