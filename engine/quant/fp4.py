"""Weights of 4-bit floats: with an e4m3 scale per 16 inputs (nvfp4), or a power of two per 32 (mxfp4).

`Fp4Weight` has the numbers and scales of a checkpoint, which its products use unchanged.

gpt-oss has another layout (`Mxfp4Weight`), which is read as plain numbers. On a GPU its experts become 4 bits
again (`Mxfp4Plain`), which is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.errors import BadCheckpoint
from engine.kernels.cpu.many_rows import linear, needs_float32
from engine.kernels.cpu.row_buckets import pad_to_bucket
from engine.quant.experts import ExpertsLinear, apply
from engine.quant.int8 import TAIL, table_blocks, table_bytes, walk
from engine.quant.packing import MX, NV
from engine.quant.plain import Plain
from engine.quant.shapes import side_by_side

if TYPE_CHECKING:  # it needs Triton, which may be missing without a GPU
    from engine.kernels.triton.experts.stacked import StackedExperts

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the lower three bits; the fourth is the sign
OFFSET = 127  # of the scales' exponents
FEW = 4  # up to this many rows a CPU sums the table's rows; for more, dequantizing is faster
SUMS = 2**22  # sums of groups at a time
_LIFT = 12  # what makes twice a number positive
_TAIL = (0.5, -0.5 * _LIFT)  # the end of a table row: the scale and the offset of its numbers


def floats_of(scale: Tensor, group: int) -> Tensor:
    """Return the scales that bytes stand for, in float32."""
    if group == NV:
        return scale.view(torch.float8_e4m3fn).float()
    return torch.ldexp(torch.ones(scale.shape, device=scale.device), scale.int() - OFFSET)


def unpacked(numbers: Tensor) -> Tensor:
    """[..., n] bytes -> [..., 2 n] numbers from 0 to 15."""
    return torch.stack((numbers & 15, numbers >> 4), -1).flatten(-2)


def values(numbers: Tensor) -> Tensor:
    """The floats of numbers from 0 to 15."""
    known = torch.tensor((*NUMBERS, *(-each for each in NUMBERS)), device=numbers.device)
    return known.index_select(0, numbers.flatten().int()).view(numbers.shape)


@dataclass(frozen=True, slots=True)
class Fp4Weight:
    """number * scale * factor, with a scale per `group` inputs of an output, and a factor per output."""

    numbers: Tensor  # [outputs, inputs / 2] uint8, the first of two in the lower bits
    scale: Tensor  # [outputs, inputs / group] uint8: e4m3, or the exponent if the group is MX
    factor: Tensor  # [outputs] float32
    group: int

    def cut(self, rows: slice, columns: slice = slice(None)) -> "Fp4Weight":
        """Return these outputs and inputs. Raises if a group of inputs would be cut."""
        numbers, scale, factor, group = self.numbers[rows], self.scale[rows], self.factor[rows], self.group
        if columns != slice(None):
            if columns.start % group or columns.stop % group:
                raise BadCheckpoint(
                    f"the inputs {columns.start} to {columns.stop} of a rank are not whole groups of {group}"
                )
            numbers = numbers[:, columns.start // 2 : columns.stop // 2].contiguous()
            scale = scale[:, columns.start // group : columns.stop // group].contiguous()
        return Fp4Weight(numbers, scale, factor, group)

    def dequantized(self) -> Tensor:
        """[outputs, inputs] in float32."""
        scale = floats_of(self.scale, self.group) * self.factor[:, None]
        return (values(unpacked(self.numbers)).unflatten(1, (-1, self.group)) * scale[..., None]).flatten(1)


class Fp4Table(nn.Module):
    """On a CPU. Like Int8Table (int8.py), with one sum per group of inputs, scaled before they are added.

    A number takes a byte, since torch sums no 4-bit floats; scales stay as they are in the file.
    """

    table: Tensor
    scale: Tensor
    factor: Tensor

    def __init__(self, weight: Fp4Weight, bias: Tensor | None) -> None:
        super().__init__()
        self.group, self.outputs = weight.group, len(weight.numbers)
        self.inputs = 2 * weight.numbers.shape[1]
        blocks, self.width = table_blocks(self.outputs)
        table = torch.full((blocks, self.inputs, self.width + TAIL), _LIFT, dtype=torch.uint8)
        table[..., self.width :] = torch.tensor(_TAIL).view(torch.uint8)
        scale = torch.zeros(blocks, weight.scale.shape[1], self.width, dtype=torch.uint8)
        for at in range(blocks):
            here = slice(at * self.width, (at + 1) * self.width)
            numbers = values(unpacked(weight.numbers[here])).mul_(2).add_(_LIFT)
            table[at, :, : len(numbers)] = numbers.to(torch.uint8).T
            scale[at, :, : len(numbers)] = weight.scale[here].T
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("factor", weight.factor, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        sums = self._few(x) if len(x) <= FEW else self._many(x)
        out = (sums[: len(x), : self.outputs] * self.factor).to(x.dtype)
        return out if self.bias is None else out.add_(self.bias)

    def _few(self, x: Tensor) -> Tensor:
        together = max(1, SUMS // (len(x) * self.scale[0].numel()))
        pieces = zip(self.table.split(together), self.scale.split(together), strict=True)
        return side_by_side([self._summed(x, *piece) for piece in pieces])

    def _summed(self, x: Tensor, table: Tensor, scale: Tensor) -> Tensor:
        """[rows, outputs] of these blocks, without the factor."""
        blocks, rows = len(table), len(x)
        indices, borders = walk(blocks, rows, self.inputs, self.group)
        weights = x.float().expand(blocks, rows, self.inputs).reshape(-1)
        sums: Tensor = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            table.view(blocks * self.inputs, -1), indices, borders, False, 0, False, weights, None, True
        )
        scaled = sums.view(blocks, rows, -1, self.width).mul_(floats_of(scale, self.group)[:, None])
        return scaled.sum(2).transpose(0, 1).reshape(rows, -1)

    def _many(self, x: Tensor) -> Tensor:
        """Like `_few`, with additional rows for the padding."""
        if x.dtype is torch.float16 or needs_float32(x):
            x = x.float()  # without the factor, numbers may exceed float16
        x = pad_to_bucket(x)
        return side_by_side([x @ self._block(at, x.dtype) for at in range(len(self.table))])

    def _block(self, at: int, dtype: torch.dtype) -> Tensor:
        """[inputs, outputs] of one block, without the factor: exact also in bfloat16."""
        numbers = self.table[at, :, : self.width].to(dtype).sub_(_LIFT).mul_(0.5)
        scale = floats_of(self.scale[at], self.group).to(dtype)
        return numbers.view(-1, self.group, self.width).mul_(scale[:, None]).flatten(0, 1)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        blocks = [self._block(at, torch.float32) for at in range(len(self.table))]
        return torch.cat(blocks, 1).T[: self.outputs] * self.factor[:, None]


def held(weight: Fp4Weight, bias: Tensor | None, dtype: torch.dtype) -> nn.Module:
    """Return a product with this weight on its device. `dtype`: of the activations."""
    if weight.numbers.device.type == "cpu":
        return Fp4Table(weight, bias)
    # Imported here: it needs Triton, which may be missing without a GPU.
    from engine.quant.gpu_products import Fp4Product

    return Fp4Product(unpacked(weight.numbers), weight.scale, weight.factor, bias, dtype)


def nbytes(outputs: int, inputs: int, group: int, device: torch.device) -> int:
    """Return the size of such a product."""
    if device.type != "cpu":
        # Imported here, as in `held`.
        from engine.quant.gpu_products import Fp4Product

        return Fp4Product.bytes_of(outputs, inputs, group)
    blocks, width = table_blocks(outputs)
    return table_bytes(outputs, inputs) + blocks * width * (inputs // group) + 4 * outputs


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """The weights of all experts."""

    blocks: Tensor  # [experts, outputs, inputs / 32, 16] uint8, two numbers each
    scales: Tensor  # [experts, outputs, inputs / 32] uint8

    def dequantized(self) -> Tensor:
        """Return [experts, inputs, outputs]. Exact: bfloat16 has more bits and the same exponents."""
        numbers = torch.tensor((*NUMBERS, *(-each for each in NUMBERS)), dtype=torch.bfloat16)
        numbers = numbers.to(self.blocks.device)
        pairs = torch.stack((self.blocks & 15, self.blocks >> 4), -1).flatten(-2)
        exponents = (self.scales.int() - OFFSET).unsqueeze(-1)
        return torch.ldexp(numbers[pairs.int()], exponents).bfloat16().flatten(2).transpose(1, 2)


def in_four_bits(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return numbers 0 to 15 [outputs, inputs], and the groups' scales; None: that would not be exact."""
    if weight.shape[1] % MX:
        return None
    groups = weight.float().unflatten(1, (-1, MX))
    exponents = torch.frexp(groups.abs().amax(2, keepdim=True)).exponent - 3
    known = torch.tensor(NUMBERS, device=weight.device)
    scaled = torch.ldexp(groups, -exponents)
    numbers = torch.bucketize(scaled.abs(), known).clamp_(max=7)
    back = torch.ldexp(known[numbers].copysign(scaled), exponents)
    if not torch.equal(back, groups):
        return None
    numbers = (numbers + 8 * (scaled < 0)).to(torch.uint8).flatten(1)
    return numbers, torch.ldexp(torch.ones_like(groups[:, :, 0]), exponents[:, :, 0])


class Mxfp4Experts(nn.Module):
    """The weights of all experts on a GPU."""

    words: Tensor
    grid: Tensor

    def __init__(
        self, experts: Sequence[tuple[Tensor, Tensor]], bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        """`experts`: the numbers and scales of each. `dtype`: of the activations."""
        super().__init__()
        # Imported here: it needs Triton, which may be missing without a GPU.
        from engine.kernels.triton.gemm.int4_gemm import UNIT, pack_int4, scale_grid

        self.outputs, self.inputs = experts[0][0].shape
        more = -self.inputs % UNIT
        words = [pack_int4(F.pad(numbers, (0, more))) for numbers, _ in experts]
        # The kernel computes number * scale + offset, with an offset of (8 - zero) * scale.
        padded = [F.pad(scale, (0, more // MX)) for _, scale in experts]
        grids = [scale_grid(scale, torch.full_like(scale, 8), dtype) for scale in padded]
        self.register_buffer("words", torch.stack(words), persistent=False)
        self.register_buffer("grid", torch.stack(grids), persistent=False)
        self.bias, self.dtype = bias, dtype

    def gpu_experts(self) -> "StackedExperts":
        from engine.kernels.triton.experts.stacked import Int4Experts

        bias = None if self.bias is None else self.bias.unflatten(0, (len(self.words), -1))
        return Int4Experts(self.words, self.grid, self.outputs, self.dtype, bias, floats=True)

    def grouped(self, x: Tensor, counts: Tensor) -> Tensor:
        count = len(self.words)
        biases = [None] * count if self.bias is None else self.bias.chunk(count)
        each = [partial(self._multiplied, expert=at, bias=bias) for at, bias in enumerate(biases)]
        return apply(x, counts, each)

    def _multiplied(self, x: Tensor, expert: int, bias: Tensor | None) -> Tensor:
        return linear(x, self.dequantized(expert).to(x.dtype), bias)

    def dequantized(self, expert: int) -> Tensor:
        """Return the weight of an expert, [outputs, inputs] in float32."""
        from engine.kernels.triton.gemm.int4_gemm import unpack_int4

        numbers = unpack_int4(self.words[expert])[: self.outputs, : self.inputs].int()
        scale = self.grid[expert].view(self.dtype).unflatten(1, (-1, 2))[..., 0].float()
        values = torch.tensor((*NUMBERS, *(-each for each in NUMBERS)), device=scale.device)[numbers]
        return values * scale.T[: self.outputs].repeat_interleave(MX, 1)[:, : self.inputs]


@dataclass(frozen=True, slots=True)
class Mxfp4Plain(Plain):
    """`none` for a checkpoint in mxfp4: its experts stay in 4 bits, without any loss."""

    def experts(self, given: ExpertsLinear) -> nn.Module | None:
        """Return what replaces the weights of experts. None: they are not exactly mxfp4."""
        found = []
        for weight in given.weight.unflatten(0, (given.experts, -1)):
            if (packed := in_four_bits(weight)) is None:
                return None
            found.append(packed)
        return Mxfp4Experts(found, given.bias, given.weight.dtype)
