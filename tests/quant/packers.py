"""Checkpoints as the quantizing tools write them, in plain loops after what those publish.

gptq: AutoGPTQ's qlinear_cuda.py, `pack`; gptq_v2 keeps zeros as they are (GPTQModel, utils/model.py).
awq: AutoAWQ's modules/linear/gemm.py, `from_linear`.
packed, int8: compressed-tensors, compressors/pack_quantized and naive_quantized.
fp4: compressed-tensors, compressors/nvfp4 and mxfp4; modelopt's quantization/qtensor/nvfp4_tensor.py.
fp8: DeepSeek-V3's inference/fp8_cast_bf16.py (`weight_scale_inv`, 128 by 128); compressed-tensors.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

PRODUCTS = tuple(f"{each}_proj.weight" for each in ("q", "k", "v", "o", "gate", "up", "down"))
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Packed:
    """The tensors of a packed weight by the ends of their names, and the weight that they stand for."""

    tensors: dict[str, Tensor]
    weight: Tensor  # [outputs, inputs] float32


def packed_columns(numbers: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Pack 4-bit numbers [n, columns], eight columns to a 32-bit number."""
    out = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for column in range(out.shape[1]):
        for place, which in enumerate(order):
            out[:, column] |= numbers[:, column * 8 + which].astype(np.uint32) << np.uint32(4 * place)
    return out


def as_int32(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers).view(np.int32).copy())


def rounded(
    weight: Tensor, index: np.ndarray, groups: int, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers [inputs, outputs], and scales (float16) and zeros [groups, outputs]."""
    columns = weight.float().numpy().T
    scales = np.zeros((groups, columns.shape[1]), np.float16)
    zeros = np.zeros((groups, columns.shape[1]), np.int64)
    for group in range(groups):
        of = columns[index == group]
        low, high = np.minimum(of.min(0), 0), np.maximum(of.max(0), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[group] = np.maximum((high - low) / 15, 1e-4)
        zeros[group] = 8 if symmetric else np.clip(np.rint(-low / scales[group].astype(np.float32)), 1, 15)
    by = scales.astype(np.float32)[index]
    return np.clip(np.rint(columns / by) + zeros[index], 0, 15).astype(np.int64), scales, zeros


def dequantized(numbers: np.ndarray, scales: np.ndarray, zeros: np.ndarray, index: np.ndarray) -> Tensor:
    by = scales.astype(np.float32)[index]
    return torch.from_numpy(((numbers - zeros[index]).astype(np.float32) * by).T.copy())


@dataclass(frozen=True)
class Gptq:
    group: int = 32
    symmetric: bool = True
    ordered: bool = False  # desc_act
    version: int = 1
    with_index: bool = True
    apart: bool = False  # queries, keys and values each in their own order

    @property
    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": self.group,
            "desc_act": self.ordered,
            "sym": self.symmetric,
            "checkpoint_format": "gptq" if self.version == 1 else "gptq_v2",
        }

    def __call__(self, weight: Tensor, number: int) -> Packed:
        """`number` is unique to this weight."""
        inputs = weight.shape[1]
        size = inputs if self.group == -1 else self.group
        index = np.arange(inputs) // size
        if self.ordered:  # the same for all products of the same input, as they share its statistics
            index = np.random.default_rng(number if self.apart else inputs).permutation(index)
        groups = -(-inputs // size)
        numbers, scales, zeros = rounded(weight, index, groups, self.symmetric)
        stored = zeros - 1 if self.version == 1 else zeros
        tensors = {
            "qweight": as_int32(packed_columns(numbers.T).T),
            "qzeros": as_int32(packed_columns(stored)),
            "scales": torch.from_numpy(scales),
        }
        if self.with_index:
            tensors["g_idx"] = torch.from_numpy(index.astype(np.int32))
        return Packed(tensors, dequantized(numbers, scales, zeros, index))


@dataclass(frozen=True)
class Awq:
    group: int = 32

    @property
    def config(self) -> dict[str, Any]:
        known = {"bits": 4, "group_size": self.group, "zero_point": True, "version": "gemm"}
        return {"quant_method": "awq", **known}

    def __call__(self, weight: Tensor, number: int) -> Packed:
        inputs = weight.shape[1]
        index = np.arange(inputs) // (inputs if self.group == -1 else self.group)
        numbers, scales, zeros = rounded(weight, index, int(index.max()) + 1, False)
        tensors = {
            "qweight": as_int32(packed_columns(numbers, AWQ_ORDER)),
            "qzeros": as_int32(packed_columns(zeros, AWQ_ORDER)),
            "scales": torch.from_numpy(scales),
        }
        return Packed(tensors, dequantized(numbers, scales, zeros, index))


@dataclass(frozen=True)
class Fp8:
    strategy: str = "channel"  # or tensor, or block
    compressed: bool = False  # by compressed-tensors
    name: str = "weight_scale"
    static: bool = False  # with a scale for the input
    modelopt: bool = False

    @property
    def config(self) -> dict[str, Any]:
        if self.modelopt:
            algorithm = "FP8" if self.strategy == "tensor" else "FP8_PER_CHANNEL_PER_TOKEN"
            return {"quant_method": "modelopt", "quant_algo": algorithm}
        if not self.compressed:
            block = {"weight_block_size": [128, 128]} if self.strategy == "block" else {}
            return {
                "quant_method": "fp8",
                "activation_scheme": "static" if self.static else "dynamic",
                **block,
            }
        weights = {"num_bits": 8, "type": "float", "strategy": self.strategy, "symmetric": True}
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head"],
        }

    def __call__(self, weight: Tensor, number: int) -> Packed:
        whole = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        means = torch.empty_like(weight, dtype=torch.float32)
        outputs, inputs = weight.shape
        tall, wide = {"tensor": (outputs, inputs), "channel": (1, inputs), "block": (128, 128)}[self.strategy]
        scales = torch.empty(-(-outputs // tall), -(-inputs // wide))
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                of = slice(row * tall, (row + 1) * tall), slice(column * wide, (column + 1) * wide)
                scales[row, column] = weight[of].abs().max().float() / 448
                whole[of] = (weight[of].float() / scales[row, column]).to(torch.float8_e4m3fn)
                means[of] = whole[of].float() * scales[row, column]
        tensors = {"weight": whole, self.name: scales.reshape(()) if self.strategy == "tensor" else scales}
        if self.static:
            tensors["input_scale"] = torch.tensor(0.02)
        return Packed(tensors, means)


@dataclass(frozen=True)
class Compressed:
    """Whole numbers of compressed-tensors."""

    bits: int = 4
    group: int = 32  # -1: one for each output
    symmetric: bool = True
    ordered: bool = False
    packed: bool = True

    @property
    def config(self) -> dict[str, Any]:
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "channel" if self.group == -1 else "group",
            "group_size": None if self.group == -1 else self.group,
            "actorder": "group" if self.ordered else None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized" if self.packed else "int-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head"],
        }

    def __call__(self, weight: Tensor, number: int) -> Packed:
        return self._bytes(weight) if self.bits == 8 else self._nibbles(weight)

    def _nibbles(self, weight: Tensor) -> Packed:
        outputs, inputs = weight.shape
        size = inputs if self.group == -1 else self.group
        index = np.arange(inputs) // size
        if self.ordered:
            index = np.random.default_rng(inputs).permutation(index)
        numbers, scales, zeros = rounded(weight, index, -(-inputs // size), self.symmetric)
        columns = np.pad(numbers.T, ((0, 0), (0, -inputs % 8)), constant_values=8)
        tensors = {
            "weight_packed": as_int32(packed_columns(columns)),
            "weight_scale": torch.from_numpy(scales.T.copy()),
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if not self.symmetric:
            rows = np.pad(zeros, ((0, 0), (0, -outputs % 8)), constant_values=8)
            tensors["weight_zero_point"] = as_int32(packed_columns(rows).T)
        if self.ordered:
            tensors["weight_g_idx"] = torch.from_numpy(index.astype(np.int32))
        return Packed(tensors, dequantized(numbers, scales, zeros, index))

    def _bytes(self, weight: Tensor) -> Packed:
        scale = weight.abs().amax(1, keepdim=True).float() / 100  # less than the whole range is used
        numbers = (weight.float() / scale).round().to(torch.int8)
        tensors = {"weight": numbers, "weight_scale": scale}
        if self.packed:
            outputs, inputs = weight.shape
            tensors = {"weight_scale": scale, "weight_shape": torch.tensor([outputs, inputs])}
            words = np.zeros((outputs, -(-inputs // 4)), np.uint32)
            for column in range(inputs):
                byte = (numbers[:, column].numpy().astype(np.int64) + 128).astype(np.uint32)
                words[:, column // 4] |= byte << np.uint32(8 * (column % 4))
            tensors["weight_packed"] = as_int32(words)
        return Packed(tensors, numbers.float() * scale)


SMALL_FLOATS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Fp4:
    """4-bit floats: nvfp4 in groups of 16, mxfp4 in groups of 32."""

    group: int = 16
    modelopt: bool = False
    static: bool = False  # with a scale for the input

    @property
    def config(self) -> dict[str, Any]:
        if self.modelopt:
            return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
        strategy, name = {16: ("tensor_group", "nvfp4"), 32: ("group", "mxfp4")}[self.group]
        weights = {"num_bits": 4, "type": "float", "strategy": strategy, "group_size": self.group}
        return {
            "quant_method": "compressed-tensors",
            "format": f"{name}-pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights | {"symmetric": True}}},
            "ignore": ["lm_head"],
        }

    def __call__(self, weight: Tensor, number: int) -> Packed:
        outputs, inputs = weight.shape
        largest = weight.abs().max().float()
        whole = largest / (6 * 448) if self.group == 16 else torch.tensor(1.0)
        stored = torch.empty(outputs, inputs // self.group, dtype=torch.float32)
        means, packed = torch.empty(outputs, inputs), torch.zeros(outputs, inputs // 2, dtype=torch.uint8)
        known = torch.tensor(SMALL_FLOATS)
        for group in range(inputs // self.group):
            of = slice(group * self.group, (group + 1) * self.group)
            columns = weight[:, of].float()
            scale = columns.abs().amax(1) / 6 / whole
            if self.group == 16:
                scale = scale.clamp(2**-9, 448).to(torch.float8_e4m3fn).float()
            else:
                scale = torch.exp2(torch.floor(torch.log2(scale.clamp(min=2.0**-120))))
            stored[:, group] = scale
            for column in range(of.start, of.stop):
                exact = weight[:, column].float() / (scale * whole)
                which = (exact.abs()[:, None] - known).abs().argmin(1)
                means[:, column] = known[which] * exact.sign() * (scale * whole)
                bits = which.to(torch.uint8) | (exact < 0).to(torch.uint8) << 3
                packed[:, column // 2] |= bits << 4 * (column % 2)
        if self.group == 32:
            exponents = (torch.log2(stored) + 127).to(torch.uint8)
            return Packed({"weight_packed": packed, "weight_scale": exponents}, means)
        kept = stored.to(torch.float8_e4m3fn)
        if self.modelopt:
            tensors = {"weight": packed, "weight_scale": kept, "weight_scale_2": whole}
            more = {"input_scale": torch.tensor(0.02)}
        else:
            tensors = {"weight_packed": packed, "weight_scale": kept}
            tensors["weight_global_scale"] = whole.reciprocal().reshape(1)
            more = {"input_global_scale": torch.tensor([300.0])}
        return Packed(tensors | (more if self.static else {}), means)


@dataclass(frozen=True)
class Mixed:
    """Each product in the next of several formats."""

    packers: tuple[Any, ...]
    modelopt: bool = False

    @property
    def config(self) -> dict[str, Any]:
        configs = [each.config for each in self.packers]
        if self.modelopt:
            layers = {f"layers.{at}": {"quant_algo": each["quant_algo"]} for at, each in enumerate(configs)}
            return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        groups = {
            f"group_{at}": each["config_groups"]["group_0"] | {"format": each["format"]}
            for at, each in enumerate(configs)
        }
        return configs[0] | {"format": "mixed-precision", "config_groups": groups}

    def __call__(self, weight: Tensor, number: int) -> Packed:
        packed: Packed = self.packers[number % len(self.packers)](weight, number)
        return packed


@dataclass
class Checkpoints:
    """Two folders with the same model: quantized, and in the plain numbers that it stands for."""

    quantized: Path
    plain: Path
    packed: dict[str, Packed] = field(default_factory=dict)

    def products(self, layer: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the expected weight of each of our fused products, by name."""
        at = f"model.layers.{layer}."
        for name, parts in (
            ("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("attention.out", ("self_attn.o_proj",)),
            ("feed_forward.gate_up", ("mlp.gate_proj", "mlp.up_proj")),
            ("feed_forward.down", ("mlp.down_proj",)),
        ):
            yield name, torch.cat([self.packed[at + part].weight for part in parts])


def write(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    into: Path,
    packer: Any,
    *,
    but: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
) -> Checkpoints:
    """Write both folders from a plain checkpoint. `but`: the ends of products that stay plain."""
    written = Checkpoints(into / "quantized", into / "plain")
    ours, theirs = dict[str, Tensor](), dict[str, Tensor]()
    for number, (name, tensor) in enumerate(tensors.items()):
        product = name.removesuffix(".weight")
        if name.endswith(PRODUCTS + also) and not product.endswith(but):
            packed = written.packed[product] = packer(tensor, number)
            ours |= {f"{product}.{end}": each for end, each in packed.tensors.items()}
            theirs[name] = packed.weight
        else:
            ours[name] = theirs[name] = tensor
    for folder, held, more in (
        (written.quantized, ours, {"quantization_config": packer.config}),
        (written.plain, theirs, {}),
    ):
        folder.mkdir(parents=True)
        save_file({name: each.contiguous() for name, each in held.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**config, **more}))
    return written
