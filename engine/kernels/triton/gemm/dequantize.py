"""Dequantizes whole weights, for products with many rows."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.int4_gemm import TILE as TOGETHER
from engine.kernels.triton.gemm.int4_gemm import UNIT, scale_of_byte
from engine.kernels.triton.gemm.skinny_gemm import as_float
from engine.kernels.triton.launch import power

TILE = 1024


@triton.jit
def _dequantize_int8(out, numbers, scale, INPUTS: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    value = as_float(tl.load(numbers + row * INPUTS + at, mask=at < INPUTS, other=0)) * tl.load(scale + row)
    tl.store(out + row * INPUTS + at, value.to(out.dtype.element_ty), mask=at < INPUTS)


def dequantize_int8(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers offset by 128, and a scale per output -> [outputs, inputs]."""
    outputs, inputs = numbers.shape
    out = torch.empty(outputs, inputs, dtype=dtype, device=numbers.device)
    _dequantize_int8[(outputs, triton.cdiv(inputs, TILE))](
        out, numbers, scale, INPUTS=inputs, TILE=TILE, num_warps=4
    )
    return out


@triton.jit
def _dequantize_int4(
    out, words, grid,
    INPUTS: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr, ALL: tl.constexpr,
    KIND: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * TURN + tl.arange(0, TURN)
    n = tl.arange(0, 32)
    there = unit < UNITS
    of = words + row // 64 * (UNITS * 64 * 32) + unit[:, None] * (64 * 32) + row % 64 * 32 + n[None, :]
    word = tl.load(of, mask=there[:, None], other=0)
    for nth in tl.static_range(4):
        at = unit * 128 + nth * 32
        pair = tl.load(grid + at // GROUP * ALL + row, mask=there, other=0)
        scale = pair.to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
        offset = (pair >> 16).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
        number = ((word >> 4 * nth) & 15).to(tl.float32) - 8
        value = number * scale[:, None] + offset[:, None]
        inputs = at[:, None] + n[None, :]
        tl.store(out + row * INPUTS + inputs, value.to(out.dtype.element_ty), mask=inputs < INPUTS)


def dequantize_int4(
    words: Tensor, grid: Tensor, kind: torch.dtype, outputs: int, inputs: int, dtype: torch.dtype
) -> Tensor:
    """Words in the layout of int4_gemm.py, with a grid of dtype `kind` -> [outputs, inputs]."""
    tiles, units = words.shape[:2]
    out = torch.empty(outputs, inputs, dtype=dtype, device=words.device)
    turn = min(32, power(units))
    _dequantize_int4[(outputs, triton.cdiv(units, turn))](
        out, words, grid,
        INPUTS=inputs, UNITS=units, GROUP=units * UNIT // len(grid), ALL=tiles * TOGETHER,
        KIND=tl.bfloat16 if kind is torch.bfloat16 else tl.float16, TURN=turn, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _dequantize_fp4(
    out, words, grid, factor,
    INPUTS: tl.constexpr, UNITS: tl.constexpr, FOUR: tl.constexpr, ALL: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * TURN + tl.arange(0, TURN)
    n = tl.arange(0, 32)
    there = unit < UNITS
    of = words + row // 64 * (UNITS * 64 * 32) + unit[:, None] * (64 * 32) + row % 64 * 32 + n[None, :]
    word = tl.load(of, mask=there[:, None], other=0)
    whole = tl.load(factor + row)
    for nth in tl.static_range(4):
        at = unit[:, None] * 128 + nth * 32 + n[None, :]
        four = tl.load(grid + at // FOUR * ALL + row, mask=there[:, None], other=0)
        scale = scale_of_byte(four, at % FOUR // (FOUR // 4), FOUR)
        number = (word >> 4 * nth).to(tl.int32) & 15
        # Exponent and fraction, as those of a float that is 2**126 times too small.
        size = ((number & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37
        value = tl.where(number > 7, -size, size) * scale * whole
        tl.store(out + row * INPUTS + at, value.to(out.dtype.element_ty), mask=at < INPUTS)


def dequantize_fp4(words: Tensor, grid: Tensor, factor: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
    """Floats in the layout of int4_gemm.py, with a grid of bytes -> [outputs, inputs]."""
    tiles, units = words.shape[:2]
    out = torch.empty(len(factor), inputs, dtype=dtype, device=words.device)
    turn = min(32, power(units))
    _dequantize_fp4[(len(factor), triton.cdiv(units, turn))](
        out, words, grid, factor,
        INPUTS=inputs, UNITS=units, FOUR=units * UNIT // len(grid), ALL=tiles * TOGETHER, TURN=turn,
        num_warps=4,
    )  # fmt: skip
    return out
