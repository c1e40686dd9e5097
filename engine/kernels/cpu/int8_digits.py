"""Products of 16-bit activations with weights in 8-bit integers, by a CPU's integer instructions.

An activation is stored as two digits: a row's largest number is 127, the second digit counts 254ths of the
first. That is 16 bits of the row's largest number, while bfloat16 has 8 of each number's own. Both digits are
rows of one integer product, which reads the weight once, and whose sums are exact. So no row depends on any
other one. The digits of a single row are repeated, since four rows are faster than two. Measured in
docs/cpu-products.md.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu.row_buckets import row_bucket

TOGETHER = 256  # most rows of a product, so that what is made of them stays small
_TOP, _BASE = 127, 254  # the largest digit; how many units of the second one are one of the first
_ZERO = 128  # what stands for 0
_DIGITS = torch.tensor([1.0, _BASE]).view(2, 1, 1)
_REPEATED = _DIGITS.repeat(2, 1, 1)
_UNITS = torch.tensor([1 / _TOP, 1 / (_TOP * _BASE)]).view(2, 1, 1)

_ops = torch.ops.onednn


@cache
def why_not(dtype: torch.dtype) -> str | None:
    """Return None if activations of this type are multiplied like that here, else the reason."""
    if dtype is not torch.bfloat16:
        return f"two digits are too few for {dtype}"
    if not torch.backends.mkldnn.is_available() or not hasattr(_ops, "qlinear_prepack"):
        return "this torch is built without oneDNN"
    # Without them, sums of two products are cut to 16 bits.
    return None if torch.cpu._is_vnni_supported() else "this CPU has no instructions for sums of bytes"


class Int8Digits(nn.Module):
    """The product with numbers [outputs, inputs] in -127 to 127, times a scale per output."""

    packed: Tensor
    scale: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.outputs, self.inputs = numbers.shape
        self.register_buffer("packed", _ops.qlinear_prepack(numbers, None), persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self._zeros = torch.zeros(self.outputs, dtype=torch.int64)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        if rows > TOGETHER:
            return torch.cat([self.forward(block) for block in x.split(TOGETHER)])
        if more := row_bucket(rows) - rows:
            x = F.pad(x, (0, 0, 0, more))
        out = self._product(x)[:rows]
        return out if self.bias is None else out.add_(self.bias)

    __call__ = forward  # as in PackedLinear

    def _product(self, x: Tensor) -> Tensor:
        top = torch.linalg.vector_norm(x, torch.inf, 1, True, dtype=torch.float32).clamp_(min=1e-30)
        digits = (x * (_TOP / top) * (_REPEATED if len(x) == 1 else _DIGITS)).round_()
        digits[1::2].sub_(digits[::2], alpha=_BASE)
        sums = self.integers(digits.add_(_ZERO).to(torch.uint8).flatten(0, 1), self.scale)
        # Each step rounds alone: fused ones would make the end of a tensor differ.
        first, second = sums.view(-1, len(x), self.outputs)[:2].mul_(_UNITS * top).unbind(0)
        return torch.add(first, second, out=torch.empty_like(first, dtype=x.dtype))

    def integers(self, digits: Tensor, scale: Tensor) -> Tensor:
        """The product in float32 with uint8 digits, of which 128 stands for 0."""
        out: Tensor = _ops.qlinear_pointwise.default(
            digits, 1.0, _ZERO, self.packed, scale, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return out

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        ones = (torch.eye(self.inputs, dtype=torch.uint8) + _ZERO).split(TOGETHER)
        numbers = [self.integers(each, torch.ones_like(self.scale)) for each in ones]
        return torch.cat(numbers).T * self.scale[:, None]
