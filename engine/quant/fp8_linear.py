"""Products with FP8 weights."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.api.errors import BadCheckpoint
from engine.kernels.cpu.many_rows import linear
from engine.quant.shapes import rounded_up, trimmed

KIND = torch.float8_e4m3fn
MOST = torch.finfo(KIND).max
ALIGNED = 16  # both dimensions of a scaled product must be multiples of this


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row by its maximum; return the numbers, and the scales [rows, 1] in float32."""
    rows = rows.float()
    scale = rows.abs().amax(1, keepdim=True).div_(MOST).clamp_(min=1e-20)
    return (rows * scale.reciprocal()).to(KIND), scale


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """An FP8 weight: numbers * scale, with a scale per `group` inputs of an output."""

    numbers: Tensor  # [outputs, inputs] of KIND
    scale: Tensor  # [outputs, groups] float32
    group: int

    def cut(self, rows: slice, columns: slice = slice(None)) -> "ScaledWeight":
        """Return these outputs and inputs. Raises if a group of inputs would be cut."""
        numbers, scale, group = self.numbers[rows], self.scale[rows], self.group
        if columns == slice(None):
            return ScaledWeight(numbers, scale, group)
        width = columns.stop - columns.start
        if scale.shape[1] == 1:
            return ScaledWeight(numbers[:, columns].contiguous(), scale, width)
        if columns.start % group or columns.stop % group:
            raise BadCheckpoint(
                f"the inputs {columns.start} to {columns.stop} of a rank are not whole groups of {group}"
            )
        groups = slice(columns.start // group, columns.stop // group)
        return ScaledWeight(numbers[:, columns].contiguous(), scale[:, groups], group)

    def dequantized(self) -> Tensor:
        """[outputs, inputs] in float32."""
        inputs = self.numbers.shape[1]
        return self.numbers.float() * self.scale.repeat_interleave(self.group, 1)[:, :inputs]


class BlockFp8(nn.Module):
    """Per-block scales: the weight is dequantized for each product, which saves memory but no time.

    Activations are rounded as with the other weights of this scheme.
    """

    numbers: Tensor
    scale: Tensor

    def __init__(self, weight: ScaledWeight, bias: Tensor | None) -> None:
        super().__init__()
        self.group = weight.group
        self.register_buffer("numbers", weight.numbers, persistent=False)
        self.register_buffer("scale", weight.scale, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        numbers, scale = quantized(x)
        rounded = (numbers.float() * scale).to(x.dtype)
        return linear(rounded, self.dequantized().to(x.dtype), self.bias)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        return ScaledWeight(self.numbers, self.scale, self.group).dequantized()


class ScaledFp8(nn.Module):
    """Rounds each row of activations by its own maximum, so a row does not depend on the others."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """`weight` [outputs, inputs] of KIND, `scale` [outputs, 1]."""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        below, right = (rounded_up(each, ALIGNED) - each for each in weight.shape)
        as_bytes = F.pad(weight.view(torch.uint8), (0, right, 0, below))  # a zero byte is 0.0
        self.register_buffer("weight", as_bytes.view(KIND), persistent=False)
        self.register_buffer("scale", F.pad(scale, (0, 0, 0, below)).T.contiguous(), persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        numbers, scale = quantized(F.pad(x, (0, self.weight.shape[1] - x.shape[1])))
        out = self.multiplied(numbers, scale, x.dtype)
        return out if self.bias is None else out + self.bias

    def multiplied(self, numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Multiply rounded rows of the padded width, with scales [rows, 1] -> [rows, outputs]."""
        out = torch._scaled_mm(
            numbers, self.weight.T, scale_a=scale, scale_b=self.scale, out_dtype=torch.bfloat16,
            use_fast_accum=True,  # 14 bits of precision, as in our own kernels; rounding to FP8 has 4
        )  # fmt: skip
        return trimmed(out, self.outputs).to(dtype)

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        return (self.weight.float() * self.scale.T)[: self.outputs, : self.inputs]
