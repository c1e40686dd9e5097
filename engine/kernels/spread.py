"""A weight in few bits spread out: what many rows are multiplied with."""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attention.tiles import power
from engine.kernels.nibbles import MAGIC, QUAD, half, number
from engine.kernels.products import as_float

TILE = 1024


@triton.jit
def _bytes(out, numbers, scale, INPUTS: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    value = as_float(tl.load(numbers + row * INPUTS + at, mask=at < INPUTS, other=0)) * tl.load(scale + row)
    tl.store(out + row * INPUTS + at, value.to(out.dtype.element_ty), mask=at < INPUTS)


def spread_bytes(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers, 128 more than they mean, and a scale for each output -> [outputs, inputs]."""
    outputs, inputs = numbers.shape
    out = torch.empty(outputs, inputs, dtype=dtype, device=numbers.device)
    _bytes[(outputs, triton.cdiv(inputs, TILE))](out, numbers, scale, INPUTS=inputs, TILE=TILE, num_warps=4)
    return out


@triton.jit
def _nibbles(
    out, words, grid, magic,
    INPUTS: tl.constexpr, QUADS: tl.constexpr, GROUP: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    quad = tl.program_id(1) * TURN + tl.arange(0, TURN)
    there = quad < QUADS
    of = words + row * (4 * QUADS) + quad[:, None] * 4 + tl.arange(0, 4)[None, :]
    word = tl.load(of, mask=there[:, None], other=0)
    pair = tl.load(grid + row * (QUADS * 32 // GROUP) + quad * 32 // GROUP, mask=there, other=0)
    for nth in tl.static_range(8):
        value = (number(word, magic, nth) - half(pair, True)[:, None]) * half(pair, False)[:, None]
        at = quad[:, None] * 32 + nth * 4 + tl.arange(0, 4)[None, :]
        tl.store(out + row * INPUTS + at, value.to(out.dtype.element_ty), mask=at < INPUTS)


def spread_nibbles(words: Tensor, grid: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
    """As nibbles.py has them -> [outputs, inputs]."""
    outputs, quads = len(words), words.shape[1] // 4
    out = torch.empty(outputs, inputs, dtype=dtype, device=words.device)
    turn = min(128, power(quads))
    _nibbles[(outputs, triton.cdiv(quads, turn))](
        out, words, grid, MAGIC, INPUTS=inputs, QUADS=quads, GROUP=quads * QUAD // grid.shape[1], TURN=turn,
        num_warps=4,
    )  # fmt: skip
    return out
