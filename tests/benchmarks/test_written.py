"""The engine loads the checkpoint of random weights that a benchmark writes."""

import json
from pathlib import Path

import pytest

from engine.api.config import EngineConfig
from engine.start import start
from minichat.bench.shapes import COMMON, SHAPES
from minichat.bench.written import write
from tests.runner.small import GREEDY, ask, drain

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "head_dim": 32,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
def test_a_written_checkpoint_is_loaded_and_requantized(shape: str, tmp_path: Path) -> None:
    write(tmp_path, COMMON | SHAPES[shape] | SMALL | HEADS)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index.keys() == {"metadata", "weight_map"}  # transformers needs both
    engine = start(
        EngineConfig(model=str(tmp_path), device="cpu", blocks=16, max_context=64, prefix_cache=False)
    )
    replies = []
    for scheme in ("none", "int8", "none"):
        engine.set_quantization(scheme)
        drain(engine)
        assert engine.snapshot().quantization == scheme
        reply = ask(engine, [1, 2, 3], GREEDY)[1]
        drain(engine)
        replies.append(reply.tokens)
    assert replies[0] == replies[2] != []
