"""Training steps with rounded weights, so that the shipped model loses little when it is quantized."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]

# The nonnegative numbers of bitsandbytes' four-bit floats, relative to the largest of a group.
_FP4 = (0.0, 1 / 192, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1.0)
_NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
_BNB_GROUP = 64
_FP8 = torch.float8_e4m3fn


def in_four_bits(weight: Tensor, group: int) -> Tensor:
    """Round to the nearest of sixteen steps between the minimum and maximum of each group, like the scheme `int4`."""
    floats = weight.float().unflatten(1, (-1, min(group, weight.size(1))))
    low, high = floats.amin(2, keepdim=True).clamp(max=0), floats.amax(2, keepdim=True).clamp(min=0)
    step = ((high - low) / 15).clamp(min=1e-20)
    zero = -low / step
    return ((floats / step + zero).round().clamp(0, 15).sub(zero) * step).flatten(1).to(weight.dtype)


def in_fp4(weight: Tensor) -> Tensor:
    """Round to the nearest four-bit float of each group, like the scheme `bnb-fp4`."""
    floats, scale = _in_groups(weight)
    nearest = _nearest(_FP4, (floats / scale).abs()).copysign(floats)
    return (nearest * scale).view_as(weight).to(weight.dtype)


def in_nf4(weight: Tensor) -> Tensor:
    """Round to the nearest of sixteen quantiles of a normal distribution, like the scheme `bnb-nf4`."""
    floats, scale = _in_groups(weight)
    return (_nearest(_NF4, floats / scale) * scale).view_as(weight).to(weight.dtype)


def _in_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The groups of bitsandbytes, and the largest magnitude of each."""
    floats = weight.float().reshape(-1, _BNB_GROUP)
    return floats, floats.abs().amax(1, keepdim=True).clamp(min=1e-20)


@cache
def _table(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)


def _nearest(numbers: tuple[float, ...], values: Tensor) -> Tensor:
    table = _table(numbers, values.device)
    return table[torch.bucketize(values, (table[1:] + table[:-1]) / 2)]


def in_fp8(weight: Tensor) -> Tensor:
    """Round to the nearest 8-bit float, relative to the largest of each row, like the weights of the scheme `fp8`."""
    floats = weight.float()
    scale = floats.abs().amax(1, keepdim=True).div(torch.finfo(_FP8).max).clamp(min=1e-20)
    return ((floats / scale).to(_FP8).float() * scale).to(weight.dtype)


ROUNDINGS: tuple[Rounding, ...] = (
    partial(in_four_bits, group=64),
    in_fp4,
    in_fp8,
    partial(in_four_bits, group=128),
    in_nf4,
    partial(in_four_bits, group=32),
)  # alternating


@contextmanager
def rounded(matrices: Sequence[Tensor], rounding: Rounding) -> Iterator[None]:
    """Round the weights for one pass and its gradient. The optimizer then updates the unrounded weights."""
    with torch.no_grad():
        whole = [matrix.clone() for matrix in matrices]
        for matrix in matrices:
            matrix.copy_(rounding(matrix))
    try:
        yield
    finally:
        with torch.no_grad():
            for matrix, before in zip(matrices, whole, strict=True):
                matrix.copy_(before)
