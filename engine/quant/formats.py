"""Converts weights that are already quantized in a checkpoint to the weights our products use.

References for the formats:
gptq  AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda.py: eight inputs of an output in one number, the
      first in the lowest bits; zeros by outputs, minus one; `g_idx` holds the group of each input.
      GPTQModel, gptqmodel/utils/model.py, convert_gptq_v1_to_v2_format: the one is added back to the whole
      32-bit numbers, with carries. Its gptq_v2 stores zeros without the subtraction.
awq   AutoAWQ, awq/modules/linear/gemm.py: eight outputs of an input in one number, in the order of AWQ.
mxfp4 OCP Microscaling Formats (MX) 1.0: 4-bit floats, two to a byte, the first in the lower bits; 32 share
      a scale, a power of two with an offset of 127.
packed compressed-tensors, compressors/pack_quantized: like gptq, but eight inputs of an output in one number
      along the inputs, numbers and zeros with an offset of 8, and the shape of the weight in a tensor.
int8  compressed-tensors: 8-bit integers times a scale, or four of them packed with an offset of 128.
fp4   compressed-tensors, compressors/nvfp4 and mxfp4: 4-bit floats as in mxfp4; in nvfp4 16 share a scale in
      e4m3, which is divided by `weight_global_scale`. modelopt, quantization/qtensor/nvfp4_tensor.py: it is
      multiplied by `weight_scale_2`.
fp8   DeepSeek-V3, inference/kernel.py, and compressed-tensors: float8 times a scale (called the inverse in
      one of them), per tensor, per output, or per block of 128 by 128.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.errors import BadCheckpoint
from engine.quant import fp4, fp8, int4, int8
from engine.quant.base import Scheme
from engine.quant.fp4 import Fp4Weight, Mxfp4Weight
from engine.quant.fp8_linear import KIND, ScaledWeight
from engine.quant.grouped import GroupedWeight
from engine.quant.int4 import Int4
from engine.quant.int8 import Int8Weight
from engine.quant.linear import Linear
from engine.quant.packing import BITS, BLOCK, NV, Packing
from engine.quant.plain import parameter_of, plain
from engine.quant.registry import named
from engine.quant.shapes import rounded_up

Stored = GroupedWeight | ScaledWeight | Int8Weight | Fp4Weight

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs each 4 bits belong to, from the lowest bits up
_ONES = 0x11111111


def stored(packing: Packing, parts: dict[str, Tensor], inputs: int) -> Stored | Mxfp4Weight:
    """Return a weight from its tensors, whose dtypes and shapes are already checked."""
    match packing.method:
        case "gptq":
            return _gptq(packing, parts, inputs)
        case "awq":
            return _awq(packing, parts)
        case "fp8":
            return _scaled(packing, parts)
        case "packed":
            return _packed(packing, parts, inputs)
        case "int8":
            return _bytes(parts, inputs)
        case "fp4":
            return _floats(packing, parts)
        case "mxfp4":
            return Mxfp4Weight(parts["blocks"], parts["scales"])
        case "gguf" | "mixed":
            raise AssertionError(
                "quant/gguf.py reads the first, which is not split; the other names a choice"
            )


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] int32 -> [..., n, 8]: the 4-bit numbers of each, lowest first."""
    pairs = packed.contiguous().view(torch.uint8).view(*packed.shape, 4)
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)


def _gptq(packing: Packing, parts: dict[str, Tensor], inputs: int) -> GroupedWeight:
    numbers = _nibbles(parts["qweight"].T).flatten(1)
    zeros = parts["qzeros"] + _ONES if packing.decremented else parts["qzeros"]
    whole = _whole(packing, numbers, _nibbles(zeros).flatten(1), parts["scales"])
    index = parts.get("g_idx")
    return whole if index is None else _in_order(whole, index.long(), packing.group or inputs)


def _awq(packing: Packing, parts: dict[str, Tensor]) -> GroupedWeight:
    back = torch.tensor(AWQ, device=parts["qweight"].device).argsort()
    numbers, zeros = (_nibbles(parts[name])[..., back].flatten(1) for name in ("qweight", "qzeros"))
    return _whole(packing, numbers.T, zeros, parts["scales"])


def _packed(packing: Packing, parts: dict[str, Tensor], inputs: int) -> GroupedWeight:
    packed, scales = parts["weight_packed"], parts["weight_scale"].T
    _check_shape(parts, len(packed), inputs)
    numbers, zeros = _nibbles(packed).flatten(1)[:, :inputs], torch.full_like(scales, 1 << BITS - 1)
    if "weight_zero_point" in parts:
        zeros = _nibbles(parts["weight_zero_point"].T).flatten(1)[:, : len(packed)]
    whole = _whole(packing, numbers, zeros, scales)
    index = parts.get("weight_g_idx")
    return whole if index is None else _in_order(whole, index.long(), packing.group or inputs)


def _bytes(parts: dict[str, Tensor], inputs: int) -> Int8Weight:
    numbers = parts.get("weight")
    if numbers is None:
        packed = parts["weight_packed"].contiguous()
        _check_shape(parts, len(packed), inputs)
        numbers = (packed.view(torch.uint8)[:, :inputs] ^ 128).view(torch.int8)
    return Int8Weight(numbers, parts["weight_scale"].float().flatten().expand(len(numbers)).contiguous())


def _floats(packing: Packing, parts: dict[str, Tensor]) -> Fp4Weight:
    numbers = parts["weight" if packing.modelopt else "weight_packed"]
    scale = parts["weight_scale"].view(torch.uint8)
    highest = 0x7E if packing.group == NV else 0xFE  # more is negative or no number
    if int(scale.max()) > highest:
        raise BadCheckpoint("weight_scale has a number that is negative or not finite")
    factor = torch.ones((), device=numbers.device)
    for name in ("weight_scale_2", "weight_global_scale"):
        if name in parts:
            given = parts[name].float().reshape(())
            factor = given if packing.modelopt else given.reciprocal()
            if not (given > 0 and factor > 0 and factor.isfinite()):
                raise BadCheckpoint(f"{name} is {float(given):g}; it must be above zero and finite")
    return Fp4Weight(numbers, scale, factor.expand(len(numbers)).contiguous(), packing.group)


def _check_shape(parts: dict[str, Tensor], *shape: int) -> None:
    if (found := parts["weight_shape"].tolist()) != [*shape]:
        raise BadCheckpoint(f"weight_shape is {found}, but the config requires {[*shape]}")


def _whole(packing: Packing, numbers: Tensor, zeros: Tensor, scales: Tensor) -> GroupedWeight:
    """Build a weight from numbers [outputs, inputs], and zeros and scales [groups, outputs], with padding."""
    group, step = packing.group or rounded_up(numbers.shape[1], packing.step), packing.step
    numbers = F.pad(numbers, (0, len(scales) * group - numbers.shape[1]))
    scale, zero = (each.T.float().repeat_interleave(group // step, 1) for each in (scales, zeros))
    return GroupedWeight(numbers.contiguous(), scale, zero)


def _in_order(weight: GroupedWeight, index: Tensor, group: int) -> GroupedWeight:
    """Sort the inputs by group. Each group must have `group` inputs, the last one the remainder."""
    inputs = len(index)
    order = torch.argsort(index, stable=True)
    groups = torch.arange(inputs, device=index.device) // group
    if not torch.equal(index[order], groups):
        raise BadCheckpoint(f"g_idx does not assign {group} inputs to each group")
    if torch.equal(index, groups):
        return weight
    numbers = weight.numbers.clone()
    numbers[:, :inputs] = weight.numbers[:, order]
    return replace(weight, numbers=numbers, order=order)


def _scaled(packing: Packing, parts: dict[str, Tensor]) -> ScaledWeight:
    numbers = parts["weight"]
    scale = next(parts[name] for name in ("weight_scale", "weight_scale_inv") if name in parts).float()
    if packing.blocks:
        return ScaledWeight(numbers, scale.repeat_interleave(BLOCK, 0)[: len(numbers)], BLOCK)
    return ScaledWeight(numbers, scale.reshape(-1, 1).expand(len(numbers), 1).contiguous(), numbers.shape[1])


def own(packing: Packing, plain: float = 0.0) -> Scheme:
    """Return the scheme that uses the checkpoint's numbers unchanged.

    `plain`: the share of weights whose numbers are not in its format.
    """
    eight = packing.method in ("fp8", "int8")
    return named(packing.method) if eight else Int4("int4", packing.step, plain=plain)


@dataclass(frozen=True, slots=True)
class AsStored:
    """`none` for a checkpoint whose numbers no other scheme uses unchanged."""

    size: float  # bytes per weight
    rounds_activations: bool
    name: str = "none"
    graphs: bool = True
    head: str = "none"
    kernels: str = "those of the checkpoint's formats"

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        return int(outputs * inputs * self.size)

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return plain(weight, bias)


def nbytes(
    packing: Packing | None, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Return the approximate size of a weight that is kept as stored. None: it is plain."""
    if packing is None or (packing.method == "fp8" and named("fp8").why_not(device, dtype)):
        return named("none").nbytes(outputs, inputs, dtype, device)
    if packing.method == "fp4":
        return fp4.nbytes(outputs, inputs, packing.group, device)
    return own(packing).nbytes(outputs, inputs, dtype, device)


def product(
    parts: Sequence[Tensor | Stored], bias: Tensor | None, inputs: int, dtype: torch.dtype
) -> nn.Module:
    """Return a product with weights whose outputs are concatenated, each kept in its own format."""
    match _joined(parts):
        case GroupedWeight() as weight:
            return int4.held(weight, bias, inputs, dtype)
        case ScaledWeight() as weight:
            return fp8.held(weight, bias)
        case Int8Weight() as weight:
            return int8.held(weight, bias, dtype)
        case Fp4Weight() as weight:
            return fp4.held(weight, bias, dtype)
        case Tensor() as weight:
            return Linear(parameter_of(weight), None if bias is None else parameter_of(bias))
    biases: Sequence[Tensor | None] = [None] * len(parts)
    if bias is not None:
        biases = bias.split([outputs(part) for part in parts])
    each = zip(parts, biases, strict=True)
    return SplitLinear([product([part], added, inputs, dtype) for part, added in each])


def outputs(weight: Tensor | Stored) -> int:
    return len(weight if isinstance(weight, Tensor) else weight.numbers)


def joined_rows(parts: Sequence[Stored]) -> Stored:
    """Concatenate parts of one weight."""
    whole = _joined(parts)
    assert isinstance(whole, Stored), "they have one format"
    return whole


def _joined(parts: Sequence[Tensor | Stored]) -> Tensor | Stored | None:
    """Concatenate to one weight; None if the formats or the column orders differ."""
    if len(parts) == 1:
        return parts[0]
    unquantized = [each for each in parts if isinstance(each, Tensor)]
    floats = [each for each in parts if isinstance(each, Fp4Weight)]
    grouped = [each for each in parts if isinstance(each, GroupedWeight)]
    scaled = [each for each in parts if isinstance(each, ScaledWeight)]
    whole = [each for each in parts if isinstance(each, Int8Weight)]
    if len(whole) == len(parts):
        return Int8Weight(
            torch.cat([each.numbers for each in whole]), torch.cat([each.scale for each in whole])
        )
    if len(unquantized) == len(parts):
        return torch.cat(unquantized)
    if len(floats) == len(parts) and len({each.group for each in floats}) == 1:
        return Fp4Weight(
            torch.cat([each.numbers for each in floats]),
            torch.cat([each.scale for each in floats]),
            torch.cat([each.factor for each in floats]),
            floats[0].group,
        )
    if len(scaled) == len(parts) and len({each.group for each in scaled}) == 1:
        numbers = torch.cat([each.numbers.view(torch.uint8) for each in scaled]).view(KIND)
        return ScaledWeight(numbers, torch.cat([each.scale for each in scaled]), scaled[0].group)
    if len(grouped) == len(parts) and all(_alike(grouped[0], each) for each in grouped):
        return GroupedWeight(
            torch.cat([each.numbers for each in grouped]),
            torch.cat([each.scale for each in grouped]),
            torch.cat([each.zero for each in grouped]),
            grouped[0].order,
        )
    return None


def _alike(one: GroupedWeight, other: GroupedWeight) -> bool:
    """Whether the groups and the orders of their inputs are the same."""
    if one.scale.shape[1] != other.scale.shape[1]:
        return False
    if one.order is None or other.order is None:
        return one.order is other.order
    return torch.equal(one.order, other.order)


class SplitLinear(nn.Module):
    """Several products whose outputs are concatenated."""

    def __init__(self, products: Sequence[nn.Module]) -> None:
        super().__init__()
        self.products = nn.ModuleList(products)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([each(x) for each in self.products], 1)
