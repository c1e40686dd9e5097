"""Weights of 4-bit floats with a power of two per 32 inputs (mxfp4), as gpt-oss stores its experts.

They are read as plain numbers. On a GPU the experts' become 4 bits again (`Mxfp4Plain`), which is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu.many_rows import linear
from engine.quant.experts import ExpertsLinear, apply
from engine.quant.packing import MX
from engine.quant.plain import Plain

if TYPE_CHECKING:  # it needs Triton, which may be missing without a GPU
    from engine.kernels.triton.experts.stacked import StackedExperts

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the lower three bits; the fourth is the sign
OFFSET = 127  # of the scales' exponents


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
