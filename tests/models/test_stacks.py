"""Checkpoints with one tensor for the experts of a layer, beside a vision model and heads that draft."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint
from engine.models.registry import load_model
from tests.distributed.test_collective import team, together
from tests.distributed.test_families import load, logits
from tests.matrix.small import make

ROOT = "model.language_model.layers.{}.mlp.experts"
PRODUCTS = ("gate", "up", "down")


def stacked(folder: Path, change: Callable[[dict[str, Tensor]], object] = lambda tensors: None) -> None:
    """Rewrite a checkpoint as the model is published, and then change its tensors."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for layer in range(3):
        root = ROOT.format(layer)
        gate, up, down = (
            torch.stack([tensors.pop(f"{root}.{expert}.{name}_proj.weight") for expert in range(4)])
            for name in PRODUCTS
        )
        tensors[f"{root}.gate_up_proj"], tensors[f"{root}.down_proj"] = torch.cat((gate, up), 1), down
    tensors["mtp.fc.weight"] = torch.zeros(2, 2)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def test_experts_of_one_tensor_are_the_same(tmp_path: Path) -> None:
    make("qwen3_5_moe", tmp_path)
    expected = logits(load(tmp_path))
    stacked(tmp_path)
    assert torch.equal(logits(load(tmp_path)), expected)


def test_ranks_read_their_rows_of_it(tmp_path: Path) -> None:
    make("qwen3_5_moe", tmp_path)
    expected = together(team(2), lambda each: logits(load(tmp_path, each)))
    stacked(tmp_path)
    for found in together(team(2), lambda each: logits(load(tmp_path, each))):
        assert torch.equal(found, expected[0])


def test_transposed_experts_are_those_with_tensors_of_their_own(tmp_path: Path) -> None:
    """As Llama 4 is published, and as it is quantized."""
    make("llama4_text", tmp_path)
    expected, file = logits(load(tmp_path)), tmp_path / "model.safetensors"
    tensors, root = load_file(file), "model.layers.1.feed_forward.experts"
    stacks = tensors.pop(f"{root}.gate_up_proj").chunk(2, dim=2), [tensors.pop(f"{root}.down_proj")]
    for name, stack in zip(PRODUCTS, [*stacks[0], *stacks[1]], strict=True):
        for at, each in enumerate(stack):
            tensors[f"{root}.{at}.{name}_proj.weight"] = each.T.contiguous()
    save_file(tensors, file)
    assert torch.equal(logits(load(tmp_path)), expected)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda each: torch.cat((each, each[:1])), "is not part of this model"),
        (lambda each: each[:3], "is not part of this model"),
        (lambda each: each[:, 2:], r"the config requires \[32, 64\]"),
        (lambda each: each[:, 1:], "is not part of this model"),
        (lambda each: each[0], "is not part of this model"),
    ],
    ids=["an expert too many", "one too few", "too narrow", "an odd number of rows", "one expert"],
)
def test_other_shapes_are_refused(change: Callable[[Tensor], Tensor], problem: str, tmp_path: Path) -> None:
    make("qwen3_5_moe", tmp_path)
    name = f"{ROOT.format(1)}.gate_up_proj"
    stacked(tmp_path, lambda tensors: tensors.update({name: change(tensors[name])}))
    with pytest.raises(BadCheckpoint, match=problem):
        load_model(ModelPlace("tiny", tmp_path))
