"""Whole numbers of compressed-tensors: used as stored, and what is refused.

tests/quant/test_checkpoints.py runs its 4-bit form with the other formats.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.support import support
from engine.quant.formats import stored
from engine.quant.packing import Packing
from tests.models.tiny import CONFIG, checkpoint, write_config
from tests.quant.packers import Compressed, write
from tests.quant.test_checkpoints import COMPRESSED, SHAPE, UP, loaded, logits, ones, refusal, weight_of

NONE: Mapping[str, Any] = MappingProxyType({})
ZERO = f"{UP}.weight_zero_point"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return checkpoint(tmp_path_factory.mktemp("plain"), **SHAPE)


@pytest.mark.parametrize("packed", [False, True])
def test_int8_numbers_are_used_as_stored(weights: dict[str, Tensor], tmp_path: Path, packed: bool) -> None:
    made = write(
        weights, CONFIG | SHAPE, tmp_path, Compressed(8, -1, packed=packed), but=("1.mlp.down_proj",)
    )
    model = loaded(made.quantized)
    assert model.source.scheme("none") is model.source.scheme("int8")
    assert model.source.scheme("none").name == "int8"
    for name, weight in made.products(0):
        assert torch.equal(model.layers[0].get_submodule(name).dequantized(), weight)
    down = weights["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(weight_of(model.layers[1].feed_forward.down, 160), down)
    torch.testing.assert_close(logits(model), logits(loaded(made.plain)), rtol=0, atol=1e-4)
    other = [logits(loaded(folder, "int4-32")) for folder in (made.quantized, made.plain)]
    assert torch.equal(*other)


def test_one_scale_may_serve_a_whole_weight(weights: dict[str, Tensor], tmp_path: Path) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, Compressed(8, -1, packed=False))
    file = made.quantized / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {f"{UP}.weight_scale": torch.tensor(0.5)}, file)
    up = loaded(made.quantized, "fp32").layers[1].feed_forward.gate_up
    torch.testing.assert_close(weight_of(up, 64)[160:], tensors[f"{UP}.weight"].float() * 0.5)


def test_inputs_need_not_fill_the_last_word() -> None:
    weight = torch.randn(12, 70, generator=torch.Generator().manual_seed(3))
    for packer in (Compressed(), Compressed(symmetric=False), Compressed(8, -1)):
        packed, method = packer(weight, 0), "int8" if packer.bits == 8 else "packed"
        read = Packing(method, 32 if packer.bits == 4 else 0, zeros=not packer.symmetric, words=True)
        found = stored(read, packed.tensors, 70).dequantized()[:, :70]
        torch.testing.assert_close(found, packed.weight, rtol=0, atol=1e-6)


def test_whole_numbers_of_compressed_tensors_are_checked(tmp_path: Path) -> None:
    def message(
        form: str = "pack-quantized", more: dict[str, Any] = MappingProxyType({}), **weights: Any
    ) -> str:
        group = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32} | weights
        config = COMPRESSED | {"format": form, "config_groups": {"group_0": {"weights": group}, **more}}
        write_config(tmp_path, quantization_config=config)
        return support(tmp_path).trouble

    checkpoint(tmp_path)
    assert message() == message(num_bits=8, strategy="channel") == ""
    assert message("int-quantized", num_bits=8, strategy="tensor") == ""
    assert "num_bits is 2; of pack-quantized, only 4 and 8 bits" in message(num_bits=2)
    assert "num_bits is 4; of int-quantized, only 8 bits" in message("int-quantized")
    assert 'type is "float"; of pack-quantized, only int' in message(type="float")
    assert "group_size is 16; only -1 and multiples of 32" in message(group_size=16)
    assert 'strategy is "tensor"; only channel and group' in message(strategy="tensor")
    assert 'strategy is "group"; only tensor and channel' in message(num_bits=8)
    assert "symmetric is false; of 8 bits, only" in message(num_bits=8, strategy="channel", symmetric=False)
    assert 'actorder is "best"; only group and weight' in message(actorder="best")
    other = {"group_1": {"format": "marlin-24", "weights": {"num_bits": 4}}}
    assert 'group_1.format is "marlin-24"; of compressed-tensors, only' in message(more=other)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({f"{UP}.weight_scale": None}, f"{UP}.weight_packed exists, but {UP}.weight_scale is missing"),
        ({f"{UP}.weight_shape": None}, f"{UP}.weight_packed exists, but {UP}.weight_shape is missing"),
        ({f"{UP}.weight_g_idx": None}, f"{UP}.weight_packed exists, but {UP}.weight_g_idx is missing"),
        ({ZERO: None}, f"{UP}.weight_packed exists, but {ZERO} is missing"),
        ({f"{UP}.weight_packed": None}, "is not part of this model"),
        ({f"{UP}.weight_packed": ones(160, 16)}, "is [160, 16], the config requires [160, 8]"),
        ({f"{UP}.weight_shape": torch.tensor([160, 63])}, "weight_shape is [160, 63], but the config"),
        ({f"{UP}.weight_shape": torch.tensor([-1, 1 << 62])}, "weight_shape is [-1, 4611686018427387904]"),
        ({f"{UP}.weight_g_idx": ones(64) * -9}, "g_idx does not assign 32 inputs to each group"),
        ({f"{UP}.weight_zero_point": ones(160, 2)}, "is [160, 2], the config requires [20, 2]"),
        ({f"{UP}.weight": torch.ones(160, 64)}, f"{UP}.weight is not part of this model"),
    ],
)  # fmt: skip
def test_a_packed_tensor_that_does_not_fit_is_named(
    weights: dict[str, Tensor], tmp_path: Path, changes: dict[str, Tensor | None], problem: str
) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, Compressed(ordered=True, symmetric=False))
    tensors = load_file(made.quantized / "model.safetensors") | changes
    kept = {name: each for name, each in tensors.items() if each is not None}
    save_file(kept, made.quantized / "model.safetensors")
    message = refusal(made.quantized)
    assert problem in message and str(made.quantized / "model.safetensors") in message


def test_stored_bytes_that_do_not_fit_are_named(weights: dict[str, Tensor], tmp_path: Path) -> None:
    made = write(weights, CONFIG | SHAPE, tmp_path, Compressed(8, -1, packed=False))
    file = made.quantized / "model.safetensors"
    tensors = load_file(file)
    wide = tensors[f"{UP}.weight_scale"].repeat(1, 2)
    for changes, problem in (
        ({f"{UP}.weight": ones(160, 64)}, f"{UP}.weight holds I32; only I8"),
        ({f"{UP}.weight_scale": wide}, f"{UP}.weight_scale is [160, 2], the config requires"),
        ({f"{UP}.weight_zero_point": ones(160, 1)}, f"{UP}.weight_zero_point is not part of this model"),
    ):
        save_file(tensors | changes, file)
        assert problem in refusal(made.quantized)
