"""Mixtures of experts: the grouped products against a loop over tokens, and what a row's bits depend on."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from engine.api.config import ModelPlace
from engine.execution.weights import Weights
from engine.models.config_json import read_config
from engine.models.decoder import Decoder, block
from engine.models.layers.moe import MoE
from engine.models.layers.step import ExpertTally, StepContext
from engine.models.registry import load_model
from engine.quant.experts import ExpertsLinear, ExpertsProduct, all_rows, own_rows
from engine.quant.registry import named
from tests.models.families import DEEPSEEK, EXPERTS, GPT_OSS, reference
from tests.models.tiny import plain_attend
from tests.quant.packers import Fp8, Gptq, write

WIDE = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "head_dim": 16}
NO_STEP = StepContext(*[cast(Any, None)] * 3)  # these parts read nothing of it


def loaded(folder: Path, scheme: str = "none") -> Decoder:
    model = load_model(ModelPlace("tiny", folder), quantization=scheme)
    assert isinstance(model, Decoder)
    return model


def part_of(model: Decoder, index: int = 0) -> MoE:
    part = model.blocks[index].feed_forward
    assert isinstance(part, MoE)
    return part


def numbers(rows: int, width: int = 64) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


@torch.inference_mode()
def logits_of(model: Decoder) -> Tensor:
    ids = torch.arange(3, 40)
    return model.logits(model.forward(ids, torch.arange(len(ids)), plain_attend(model.config.layers)))


def expected(part: MoE, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """Token by token, expert by expert."""
    out = torch.zeros_like(x)
    for at, token in enumerate(x):
        scores = (tensors["mlp.gate.weight"] @ token).softmax(0)
        for index in scores.argsort(descending=True)[: part.spec.chosen].tolist():
            up, gate, down = (tensors[f"mlp.experts.{index}.{n}_proj.weight"] for n in ("up", "gate", "down"))
            out[at] += scores[index] * (down @ (F.silu(gate @ token) * (up @ token)))
    return out


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_chosen_experts_are_weighed_and_summed(rows: int, tmp_path: Path) -> None:
    """With one row, most experts have none."""
    reference("Qwen3Moe", EXPERTS | WIDE, tmp_path)
    part, x, prefix = part_of(loaded(tmp_path), 1), numbers(rows), "model.layers.1."
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if name.startswith(prefix)
    }
    with torch.inference_mode():
        torch.testing.assert_close(part.mixed(x), expected(part, tensors, x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["Qwen2Moe", "DeepseekV3", "GptOss"])
def test_a_row_depends_on_no_other_row(family: str, tmp_path: Path) -> None:
    shapes = {"Qwen2Moe": EXPERTS | WIDE, "DeepseekV3": DEEPSEEK, "GptOss": GPT_OSS}
    reference(family, shapes[family], tmp_path)
    part, x = part_of(loaded(tmp_path), 1), numbers(70)
    with torch.inference_mode():
        whole = part.forward(x, NO_STEP)
        for rows in (slice(5, 8), slice(20, 61), *(slice(at, at + 1) for at in range(70))):
            assert torch.equal(part.forward(x[rows], NO_STEP), whole[rows])


def test_nothing_waits_for_a_device(tmp_path: Path) -> None:
    """A meta tensor has no values to wait for."""
    reference("Qwen2Moe", EXPERTS, tmp_path)
    with torch.device("meta"):
        part = block(read_config(tmp_path), 0, torch.bfloat16).feed_forward
        out = part.forward(torch.empty(9, 64, dtype=torch.bfloat16), NO_STEP)
    assert out.shape == (9, 64) and out.dtype is torch.bfloat16


@pytest.mark.parametrize("bias", [False, True])
def test_both_ways_to_multiply_by_group_agree(bias: bool) -> None:
    made = ExpertsLinear.of(4, 8, 6, bias=bias, dtype=torch.float32)
    for tensor in made.parameters():
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
    x, counts, final = numbers(11, 8), torch.tensor([3, 0, 7, 1]), made.finalized(named("none"))
    assert isinstance(final, ExpertsProduct)
    with torch.inference_mode():
        found = made.grouped(x, counts)
        assert found.shape == (11, 6)
        for way in (own_rows, all_rows):
            torch.testing.assert_close(way(x, counts, list(final.products)), found)


@pytest.mark.parametrize("scheme", ["int8", "int4-32", "bf16"])
def test_quantized_experts_stay_near(scheme: str, tmp_path: Path) -> None:
    """The router is not quantized."""
    reference("Qwen3Moe", EXPERTS | WIDE, tmp_path)
    exact, model = loaded(tmp_path), loaded(tmp_path, scheme)
    part = part_of(model)
    assert isinstance(part.gate_up, ExpertsProduct) and len(part.gate_up.products) == 5
    assert type(part.router) is type(part_of(exact).router)
    found, wanted = logits_of(model), logits_of(exact)
    assert 0 < (found - wanted).norm() < 0.5 * wanted.norm()


@pytest.mark.parametrize("scheme", ["none", "int8"])
def test_only_chosen_experts_count_as_operations(scheme: str, tmp_path: Path) -> None:
    found = []
    for chosen in (1, 3):
        reference("Qwen3Moe", EXPERTS | WIDE | {"num_experts_per_tok": chosen}, tmp_path / str(chosen))
        found.append(Weights(loaded(tmp_path / str(chosen), scheme), scheme, share=1.0).operations[0])
    layers = len(loaded(tmp_path / "1").layers)
    assert found[1] - found[0] == 2 * layers * 2 * 3 * 64 * 32, "two more experts of three products"


@pytest.mark.parametrize("packer", [Gptq(), Fp8()], ids=["gptq", "fp8"])
def test_experts_stored_quantized_keep_their_numbers(packer: Any, tmp_path: Path) -> None:
    reference("Qwen3Moe", EXPERTS | WIDE, tmp_path)
    tensors, config = (
        load_file(tmp_path / "model.safetensors"),
        json.loads((tmp_path / "config.json").read_text()),
    )
    made = write(tensors, config, tmp_path / "packed", packer)
    stored, plain = loaded(made.quantized), loaded(made.plain)
    assert isinstance(part_of(stored).down, ExpertsProduct)
    torch.testing.assert_close(logits_of(stored), logits_of(plain), atol=2e-2, rtol=2e-2)
    assert (logits_of(plain) - logits_of(loaded(tmp_path))).norm() > 0.01


def test_layers_may_be_dense(tmp_path: Path) -> None:
    reference("Qwen3Moe", EXPERTS | WIDE | {"mlp_only_layers": [1]}, tmp_path)
    kinds = [type(each.feed_forward).__name__ for each in loaded(tmp_path).blocks]
    assert kinds == ["MoE", "DenseMLP", "MoE"]


def test_a_router_is_exact_in_half_precision(tmp_path: Path) -> None:
    """Rounded scores could choose other experts."""
    reference("Mixtral", EXPERTS | {"head_dim": 16}, tmp_path)
    model = load_model(ModelPlace("tiny", tmp_path), dtype="bfloat16")
    assert isinstance(model, Decoder)
    x, weight = numbers(30).bfloat16(), load_file(tmp_path / "model.safetensors")
    with torch.inference_mode():
        weights, chosen = part_of(model).routed(x)
        scores = x.float() @ weight["model.layers.0.block_sparse_moe.gate.weight"].T
    assert weights.dtype is torch.float32
    assert torch.equal(chosen, scores.topk(2).indices)
    torch.testing.assert_close(weights.sum(-1), torch.ones(30))


def test_padding_is_not_counted() -> None:
    tally = ExpertTally(torch.zeros(2, 4, dtype=torch.int64), torch.tensor([7, 0, -1]))
    tally.add(1, torch.tensor([[0, 3], [3, 1], [2, 3]]))
    assert tally.counts.tolist() == [[0, 0, 0, 0], [1, 1, 0, 2]]
