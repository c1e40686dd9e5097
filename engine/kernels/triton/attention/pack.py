"""Packs a token's head for the compressed cache: a byte per number, and a scale.

The reference is engine/attention/packing.py.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from engine.attention.packing import MOST


@triton.jit
def packed(numbers, kind: tl.constexpr, MOST: tl.constexpr):
    """[heads, dim] -> the same in bytes, and the scales [heads]. A NaN makes its scale NaN."""
    numbers = numbers.to(tl.float32)
    broken = tl.max((numbers != numbers).to(tl.int32), 1) > 0
    greatest = tl.where(broken, float("nan"), tl.max(tl.abs(numbers), 1))
    scale = tl.div_rn(greatest, MOST * 1.0).to(tl.bfloat16)
    by = scale.to(tl.float32)
    steps = tl.div_rn(numbers, tl.where(by > 0, by, 1.0)[:, None])
    if kind == tl.int8:
        steps = tl.floor(steps + 0.5)
    return tl.minimum(tl.maximum(steps, -MOST), MOST).to(kind), scale


def most(kind: torch.dtype) -> float:
    """Return the largest value of a packed cache's dtype; 0 for an uncompressed cache."""
    greatest: Mapping[torch.dtype, float] = MOST
    return greatest.get(kind, 0.0)
