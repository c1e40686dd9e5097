"""Training steps with weights rounded to four bits, so that the shipped model loses little when it is quantized."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

GROUPS = (64, 128)  # inputs that share a scale, alternating


def in_four_bits(weight: Tensor, group: int) -> Tensor:
    """Round to the nearest of sixteen steps between the minimum and maximum of each group, like the scheme `int4`."""
    floats = weight.float().unflatten(1, (-1, min(group, weight.size(1))))
    low, high = floats.amin(2, keepdim=True).clamp(max=0), floats.amax(2, keepdim=True).clamp(min=0)
    step = ((high - low) / 15).clamp(min=1e-20)
    zero = -low / step
    return ((floats / step + zero).round().clamp(0, 15).sub(zero) * step).flatten(1).to(weight.dtype)


@contextmanager
def rounded(matrices: Sequence[Tensor], group: int) -> Iterator[None]:
    """Round the weights for one pass and its gradient. The optimizer then updates the unrounded weights."""
    with torch.no_grad():
        whole = [matrix.clone() for matrix in matrices]
        for matrix in matrices:
            matrix.copy_(in_four_bits(matrix, group))
    try:
        yield
    finally:
        with torch.no_grad():
            for matrix, before in zip(matrices, whole, strict=True):
                matrix.copy_(before)
