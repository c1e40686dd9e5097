"""gpt-oss with its experts in mxfp4, as published: read as the numbers they stand for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.api.config import ModelPlace
from engine.api.errors import BadCheckpoint
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.quant.fp4 import NUMBERS, Mxfp4Weight, in_four_bits
from engine.quant.registry import named
from tests.models.families import GPT_OSS, reference
from tests.models.tiny import plain_attend

EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def packed(outputs: int, inputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random blocks and scales near 1."""
    draw = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (5, outputs, inputs // 32, 16), generator=draw, dtype=torch.uint8)
    return blocks, torch.randint(121, 125, (5, outputs, inputs // 32), generator=draw, dtype=torch.uint8)


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, Any]:
    """A folder with mxfp4 experts, and transformers' model with the numbers they stand for."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    theirs = reference("GptOss", GPT_OSS | {"intermediate_size": 96}, tmp_path)
    tensors, plain = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    for name in [name for name in tensors if name.endswith(EXPERTS)]:
        inputs, outputs = tensors.pop(name).shape[1:]
        blocks, scales = packed(outputs, inputs, seed=len(tensors))
        plain[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, theirs


def test_every_number_and_scale() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 1, 16).expand(1, 16, 3, 16)
    scales = torch.tensor([1, 127, 250], dtype=torch.uint8).expand(1, 16, 3)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    found = Mxfp4Weight(blocks, scales).dequantized()
    assert found.shape == (1, 96, 16) and torch.equal(found, expected.view(found.shape))


def test_numbers_that_were_read_become_four_bits_again() -> None:
    """Exactly, also in groups without the largest numbers, and never any others."""
    blocks, scales = packed(40, 96, seed=0)
    blocks[0] &= 0x33  # groups of small numbers
    blocks[1] = 0
    weight = Mxfp4Weight(blocks, scales).dequantized().transpose(1, 2).flatten(0, 1)
    found = in_four_bits(weight)
    assert found is not None
    numbers, steps = found
    values = torch.tensor((*NUMBERS, *(-each for each in NUMBERS)))[numbers.int()]
    assert torch.equal(values * steps.repeat_interleave(32, 1), weight.float())
    weight[3, 5] *= 1.01
    assert in_four_bits(weight) is None and in_four_bits(weight[:, :40]) is None


@torch.inference_mode()
def logits_of(folder: Path, scheme: str) -> Tensor:
    model = load_model(ModelPlace("tiny", folder), quantization=scheme)
    assert isinstance(model, Decoder)
    ids = torch.arange(3, 60)
    attend = plain_attend(model.config.layers, sinks=model.sinks)
    return model.logits(model.forward(ids, torch.arange(len(ids)), attend))


def test_the_logits_are_those_of_the_numbers(published: tuple[Path, Any]) -> None:
    folder, theirs = published
    with torch.inference_mode():
        expected = theirs(torch.arange(3, 60)[None]).logits[0]
    torch.testing.assert_close(logits_of(folder, "none"), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("scheme", "loss"), [("bf16", 0.0), ("int8", 0.008), ("int4-32", 0.085)])
def test_they_can_be_quantized_again(scheme: str, loss: float) -> None:
    """docs/models.md has these losses of the weights. The numbers are those of a normal distribution."""
    draw = torch.Generator().manual_seed(0)
    groups = torch.randn(1, 256, 16, 32, generator=draw)
    exponents = groups.abs().amax(-1).log2().floor() - 2
    numbers = torch.tensor([*NUMBERS, *(-each for each in NUMBERS)])
    nearest = (groups / exponents.exp2()[..., None])[..., None].sub(numbers).abs().argmin(-1).to(torch.uint8)
    weight = Mxfp4Weight(nearest[..., ::2] | nearest[..., 1::2] << 4, (exponents + 127).to(torch.uint8))
    exact = weight.dequantized()[0].T.float().contiguous()
    found = named(scheme).make(exact.clone(), None)(torch.eye(512)).T
    assert float((found - exact).norm() / exact.norm()) == pytest.approx(loss, abs=0.0005)


def test_a_model_of_them_loads_in_another_scheme(published: tuple[Path, Any]) -> None:
    folder, _ = published
    exact, found = logits_of(folder, "none"), logits_of(folder, "int8")
    assert 0 < (found - exact).norm() < 0.03 * exact.norm()


BLOCKS, SCALES = (f"model.layers.1.mlp.experts.down_proj_{each}" for each in ("blocks", "scales"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({SCALES: None}, f"{BLOCKS} exists, but {SCALES} is missing"),
        ({BLOCKS: None}, f"{SCALES} is not part of this model"),
        ({SCALES: torch.zeros(5, 64, 2, dtype=torch.uint8)}, f"{SCALES} is .5, 64, 2., the config requires"),
        ({BLOCKS: torch.zeros(5, 64, 3, 16, dtype=torch.int8)}, f"{BLOCKS} holds I8; only U8"),
    ],
    ids=["no-scales", "no-blocks", "shape", "type"],
)
def test_broken_experts_are_refused(
    changes: dict[str, Tensor | None], problem: str, published: tuple[Path, Any]
) -> None:
    file = published[0] / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    with pytest.raises(BadCheckpoint, match=problem):
        load_model(ModelPlace("tiny", published[0]))
