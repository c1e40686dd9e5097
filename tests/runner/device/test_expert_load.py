"""The tokens that experts got, as the engine reports them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.api.expert_load import ExpertLoad
from engine.models.decoder import Decoder
from engine.models.layers.moe import MoE
from tests.runner.small import GREEDY, ask, drain, engine_on, make


def layers_with_experts(model: object) -> list[int]:
    assert isinstance(model, Decoder)
    return [each.index for each in model.blocks if any(isinstance(part, MoE) for part in each.parts)]


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "nemotron_h"])
def test_each_token_counts_once_for_each_expert_that_it_chose(family: str, tmp_path: Path) -> None:
    make(family, tmp_path)
    engine = engine_on(tmp_path)
    layers, before = layers_with_experts(engine.runner.model), engine.snapshot().experts
    assert before is not None and before.layers == tuple(layers) and layers
    ask(engine, range(3, 14), GREEDY.changed(max_tokens=6))
    ask(engine, range(5, 9), GREEDY.changed(max_tokens=6))
    drain(engine)
    after = engine.snapshot().experts
    assert after is not None and after.like(before)
    tokens = 11 + 4 + 2 * 5  # the last token of a reply is not computed with
    assert after.since(before).table.sum(1).tolist() == [tokens * after.chosen] * len(layers)
    assert after.imbalance().min() >= 1


@pytest.mark.cuda
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "qwen3_next"])
def test_a_gpu_counts_the_same_without_padding(family: str, tmp_path: Path) -> None:
    """Five rows run in graphs of eight."""
    make(family, tmp_path)
    engine = engine_on(tmp_path, device="cuda")
    for _ in range(2):
        for first in range(5):
            ask(engine, range(3 + first, 14), GREEDY.changed(max_tokens=6))
        drain(engine)
    engine.snapshot()
    torch.cuda.synchronize()
    load = engine.snapshot().experts
    assert load is not None and engine.runner.graph_sizes
    tokens = 2 * (11 + 10 + 9 + 8 + 7 + 5 * 5)
    assert load.table.sum(1).tolist() == [tokens * load.chosen] * len(load.layers)


def test_a_model_without_experts_has_none(tmp_path: Path) -> None:
    make("llama", tmp_path)
    assert engine_on(tmp_path).snapshot().experts is None


def test_an_idle_layer_has_no_imbalance() -> None:
    counts = np.array([4, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    assert ExpertLoad((0, 2, 3), 4, 1, counts).imbalance().tolist() == [4.0, 1.0, 0.0]
