"""One row times an int4 weight, fused with the operations before and after the product.

A single-row step is bound by reading weights, so they are loaded before the kernel waits for the previous
one. Words (int4_gemm.py) are loaded directly to the registers that the tensor cores read: the order in which
inputs are counted makes each thread load exactly what its place in a product needs. No weight goes through
shared memory. The warps of a program split the inputs, and add up their results there.

Such a product has eight columns, and there is one row. So each column stands for inputs that share a scale of
an output: x is in its own column and zero in the others. Numbers are multiplied with their offset of 128
(1024 in float16), which is exact. Scales are applied last, in float32.

A norm is computed in two steps, as in linear_residual_norm.py.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.int4_gemm import TILE, UNIT
from engine.kernels.triton.gemm.skinny_gemm import ProductTiling, silu_mul
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import Normed, length_of

COLUMNS = 8  # of a tensor core product; the kernels hard-code it
WARPS = 8  # most warps of a program
KNOWN = triton.__version__.startswith(("3.6.", "3.7."))  # versions whose thread layout `_pairs` relies on


def _whole(power: str) -> str:
    """Assembly for $0 to $3: the four numbers of each half of word $4, in the fraction of a power of two."""
    shifts = (f"shr.u32 n, $4, {4 * nth}; lop3.b32 ${nth}, n, 0x000f000f, {power}, 0xea;" for nth in range(4))
    return "{ .reg .b32 n;" + " ".join(shifts) + "}"


def _kept(kind: str) -> str:
    """Assembly for $0: the two numbers in $1 times those in $2, which are ones or zeros."""
    return f"{{ .reg .b32 none; mov.b32 none, 0; fma.rn.{kind} $0, $1, $2, none; }}"


# By dtype: conversion to numbers plus a power of two, that power, two ones, and the keep-or-drop product.
KINDS = {
    torch.bfloat16: (_whole("0x43004300"), 128, 0x3F803F80, _kept("bf16x2")),
    torch.float16: (_whole("0x64006400"), 1024, 0x3C003C00, _kept("f16x2")),
}
_WHOLE_OPERANDS = tl.constexpr("=r,=r,=r,=r,r")
_KEPT_OPERANDS = tl.constexpr("=r,r,r,r")


@triton.jit
def _words(words, first, unit, UNITS: tl.constexpr, OUTPUTS: tl.constexpr, PER: tl.constexpr):
    """[units, 16 outputs, 2, threads, 8]: the last axis is one load."""
    thread = tl.arange(0, unit.shape[0])
    sixteen = tl.arange(0, OUTPUTS // 16)[:, None] * 16 + tl.arange(0, 2)[None, :] * 8
    output = first + sixteen[:, :, None] + (thread // 4 % 8)[None, None, :]
    unit = unit[None, :] + tl.arange(0, 8 // PER)[:, None]
    at = (output // 64 * (UNITS * 64 * 32) + output % 64 * 32)[None, :, :, :] + (thread % 4 * 8)
    at += (unit * (64 * 32))[:, None, None, :]
    at = tl.max_contiguous(at[:, :, :, :, None] + tl.arange(0, 8), (1, 1, 1, 2, 8))  # see below
    return tl.load(words + at, mask=(unit < UNITS)[:, None, None, :, None], other=0)


@triton.jit
def _pairs(
    grid, first, unit,
    UNITS: tl.constexpr, ALL: tl.constexpr, GROUP: tl.constexpr, OUTPUTS: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    """[warps, outputs, columns]: scale and offset, in the thread that holds the numbers they scale.

    The addresses are declared contiguous across threads, though they are not: so the compiler, which orders
    threads by contiguity, keeps the program's thread order. Compiler versions differ where they have a
    choice.
    """
    thread = tl.arange(0, unit.shape[0])
    sixteen = tl.arange(0, OUTPUTS // 16)[:, None] * 16 + tl.arange(0, 2)[None, :] * 8
    output = first + sixteen[:, :, None, None] + (thread // 4 % 8)
    column = tl.arange(0, 2)[:, None] + (thread % 4 * 2)[None, :]
    unit = unit[None, :] + column // PER
    group = (unit * 128 + column % PER * (128 // PER)) // GROUP
    at = tl.max_contiguous(group[None, None, :, :] * ALL + output, (1, 1, 1, 2))
    pair = tl.load(grid + at, mask=(unit < UNITS)[None, None, :, :], other=0)
    pair = tl.reshape(pair, [OUTPUTS // 16, 2, 2, unit.shape[1] // 32, 8, 4])
    return tl.reshape(tl.permute(pair, (3, 0, 1, 4, 5, 2)), [unit.shape[1] // 32, OUTPUTS, 8])


@triton.jit
def _inputs(x, unit, nth: tl.constexpr, INPUTS: tl.constexpr, PER: tl.constexpr):
    """[threads, 8]: the `nth` 32 inputs of each column."""
    thread = tl.arange(0, unit.shape[0])
    column = thread // 4 % 8
    start = (unit + column // PER) * 128 + (column % PER * (4 // PER) + nth) * 32 + thread % 4 * 8
    at = start[:, None] + tl.arange(0, 8)
    return tl.load(x + at, mask=at < INPUTS, other=0.0)


@triton.jit
def _owned(eye, nth: tl.constexpr, THREADS: tl.constexpr, PER: tl.constexpr):
    """[units, threads]: ones where the `nth` 32 inputs of a unit belong to the thread's column.

    Loaded from memory, as the compiler moves computed values through shared memory.
    """
    column = tl.arange(0, THREADS) // 4 % 8
    given = tl.arange(0, 8 // PER) * PER + nth * PER // 4
    return tl.load(eye + column[None, :] * 8 + given[:, None])


@triton.jit
def _in_columns(x, owned, KEPT: tl.constexpr):
    """[warps, inputs, columns]: x in its own column, else zero."""
    units: tl.constexpr = owned.shape[0]
    warps: tl.constexpr = owned.shape[1] // 32
    x = tl.broadcast_to(x[None, :, :], (units, warps * 32, 8))
    x = tl.inline_asm_elementwise(
        KEPT, _KEPT_OPERANDS, [x, owned[:, :, None]], dtype=x.dtype, is_pure=True, pack=2
    )
    x = tl.reshape(x, [units, warps, 8, 4, 2, 2, 2])
    return tl.reshape(tl.permute(x, (1, 0, 4, 5, 3, 6, 2)), [warps, units * 32, 8])


@triton.jit
def _scaled(words, pairs, x0, x1, x2, x3, sums, WHOLE: tl.constexpr, MORE: tl.constexpr):
    """[warps, outputs, columns] of a turn's product. `sums`: the sums of x by column."""
    units: tl.constexpr = words.shape[0]
    sixteen: tl.constexpr = words.shape[1]
    warps: tl.constexpr = words.shape[3] // 32
    words = tl.reshape(words, [units, sixteen, 2, warps, 8, 4, 2, 2, 2])
    words = tl.reshape(tl.permute(words, (3, 1, 2, 4, 0, 6, 7, 5, 8)), [warps, sixteen * 16, units * 32])
    kind = x0.dtype
    w0, w1, w2, w3 = tl.inline_asm_elementwise(
        WHOLE, _WHOLE_OPERANDS, [words], dtype=(kind, kind, kind, kind), is_pure=True, pack=2
    )
    total = tl.dot(w0, x0)
    total = tl.dot(w1, x1, total)
    total = tl.dot(w2, x2, total)
    total = tl.dot(w3, x3, total)
    scale = pairs.to(tl.int16).to(kind, bitcast=True).to(tl.float32)
    offset = (pairs >> 16).to(tl.int16).to(kind, bitcast=True).to(tl.float32)
    return (total - (MORE + 8) * sums) * scale + sums * offset


@triton.jit
def _int4_gemv(
    out, x, words, grid, squares, stream, scaled, pieces, norm_weight, eye, eps,
    WIDTH: tl.constexpr, ALL: tl.constexpr, INPUTS: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr,
    OUTPUTS: tl.constexpr, WARPS: tl.constexpr, PER: tl.constexpr, TURNS: tl.constexpr,
    WHOLE: tl.constexpr, MORE: tl.constexpr, KEPT: tl.constexpr,
    GATED: tl.constexpr, RESIDUAL_NORM: tl.constexpr, PIECES: tl.constexpr, PADDED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.program_id(0) * OUTPUTS
    output = first + tl.arange(0, OUTPUTS)
    there = output < WIDTH
    unit = tl.arange(0, WARPS * 32) // 32 * (TURNS * (8 // PER))  # of each thread
    word = _words(words, first, unit, UNITS, OUTPUTS, PER)
    pairs = _pairs(grid, first, unit, UNITS, ALL, GROUP, OUTPUTS, PER)
    if GATED:
        word_up = _words(words, WIDTH + first, unit, UNITS, OUTPUTS, PER)
        pairs_up = _pairs(grid, WIDTH + first, unit, UNITS, ALL, GROUP, OUTPUTS, PER)
    own0 = _owned(eye, 0, WARPS * 32, PER)
    own1 = _owned(eye, 1, WARPS * 32, PER)
    own2 = _owned(eye, 2, WARPS * 32, PER)
    own3 = _owned(eye, 3, WARPS * 32, PER)
    if RESIDUAL_NORM:
        norm_scale = tl.load(norm_weight + output, mask=there, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()

    total = tl.zeros([WARPS, OUTPUTS, 8], tl.float32)
    total_up = tl.zeros([WARPS, OUTPUTS, 8], tl.float32)
    for turn in tl.range(0, TURNS, num_stages=1):
        low = _inputs(x, unit, 0, INPUTS, PER)
        high = low
        sums = tl.sum(low.to(tl.float32), 1)
        if PER == 2:
            high = _inputs(x, unit, 1, INPUTS, PER)
            sums += tl.sum(high.to(tl.float32), 1)
        sums = tl.sum(tl.reshape(sums, [WARPS, 8, 4]), 2)[:, None, :]
        x0 = _in_columns(low, own0, KEPT)
        x1 = _in_columns(high, own1, KEPT)
        x2 = _in_columns(low, own2, KEPT)
        x3 = _in_columns(high, own3, KEPT)
        now = word
        now_pairs = pairs
        if GATED:
            now_up = word_up
            now_pairs_up = pairs_up
        if TURNS > 1:  # prefetch the next turn's; nothing is loaded after the last turn
            unit += 8 // PER
            ahead = tl.where(turn + 1 < TURNS, unit, UNITS)
            word = _words(words, first, ahead, UNITS, OUTPUTS, PER)
            pairs = _pairs(grid, first, ahead, UNITS, ALL, GROUP, OUTPUTS, PER)
            if GATED:
                word_up = _words(words, WIDTH + first, ahead, UNITS, OUTPUTS, PER)
                pairs_up = _pairs(grid, WIDTH + first, ahead, UNITS, ALL, GROUP, OUTPUTS, PER)
        total += _scaled(now, now_pairs, x0, x1, x2, x3, sums, WHOLE, MORE)
        if GATED:
            total_up += _scaled(now_up, now_pairs_up, x0, x1, x2, x3, sums, WHOLE, MORE)

    result = tl.sum(tl.sum(total, 2), 0)
    result_up = tl.sum(tl.sum(total_up, 2), 0)
    if PIECES > 0:
        length = tl.sum(length_of(squares, tl.arange(0, 1), 1, eps, INPUTS, PIECES, PADDED))
        result *= length
        result_up *= length
    result = result.to(x.dtype.element_ty)
    if GATED:
        result = silu_mul(result, result_up.to(result.dtype))
    if RESIDUAL_NORM:
        before = tl.load(stream + output, mask=there, other=0.0)
        tl.debug_barrier()  # all threads must have read it before any writes, as some elements are shared
        value = (before.to(tl.float32) + result.to(tl.float32)).to(before.dtype)
        wide = value.to(tl.float32)
        tl.store(stream + output, value, mask=there)
        tl.store(scaled + output, (wide * norm_scale).to(before.dtype), mask=there)
        tl.store(pieces + tl.program_id(0), tl.sum(wide * wide))
    else:
        tl.store(out + output, result, mask=there)


def int4_gemv(
    x: Normed,
    words: Tensor,
    grid: Tensor,
    eye: Tensor,
    outputs: int,
    *,
    gated: bool = False,
    pdl: bool = False,
    cut: ProductTiling | None = None,
) -> Tensor:
    """[1, inputs] -> [1, outputs]; finishes a half-done norm. `pdl` as in Tile.

    `gated`: silu of the first half of the weight's outputs, times the second.
    """
    cut = cut or int4_gemv_tiling(words, grid, gated=gated)
    out = torch.empty(1, outputs, dtype=x.values.dtype, device=words.device)
    _launch(out, x, (words, grid), (None, None, None, None, eye), cut, gated=gated, pdl=pdl)
    return out


def int4_gemv_residual_norm(
    stream: Tensor,
    x: Tensor,
    words: Tensor,
    grid: Tensor,
    eye: Tensor,
    norm_weight: Tensor,
    eps: float,
    *,
    pdl: bool = False,
    cut: ProductTiling | None = None,
) -> Normed:
    """Add the product to the stream, in place, and return its norm without the last step."""
    cut = cut or int4_gemv_tiling(words, grid)
    scaled = torch.empty_like(stream)
    pieces = triton.cdiv(stream.shape[1], cut.outputs)
    squares = torch.empty(pieces, 1, dtype=torch.float32, device=stream.device)
    _launch(scaled, Normed(x), (words, grid), (stream, scaled, squares, norm_weight, eye), cut, pdl=pdl)
    return Normed(scaled, squares, eps)


def _launch(
    out: Tensor,
    x: Normed,
    weight: tuple[Tensor, Tensor],
    around: tuple[Tensor | None, ...],
    cut: ProductTiling,
    *,
    gated: bool = False,
    pdl: bool,
) -> None:
    (words, grid), outputs = weight, out.shape[1]
    tiles, units = words.shape[:2]
    per, group = _per(units, grid), units * UNIT // len(grid)
    pieces = 0 if x.squares is None else len(x.squares)
    whole, more, _, kept = KINDS[x.values.dtype]
    _int4_gemv[(triton.cdiv(outputs, cut.outputs),)](
        out, x.values, words, grid, x.squares, *around, x.eps,
        WIDTH=outputs, ALL=tiles * TILE, INPUTS=x.values.shape[1], UNITS=units, GROUP=group,
        OUTPUTS=cut.outputs, WARPS=cut.warps, PER=per, TURNS=triton.cdiv(units * per, cut.warps * COLUMNS),
        WHOLE=whole, MORE=more, KEPT=kept, GATED=gated, RESIDUAL_NORM=around[0] is not None,
        PIECES=pieces, PADDED=power(max(1, pieces)), PDL=pdl, num_warps=cut.warps, **launch(pdl),
    )  # fmt: skip


def int4_gemv_tiling(words: Tensor, grid: Tensor, *, gated: bool = False) -> ProductTiling:
    """All inputs at once if the warps suffice, and few enough outputs that two programs fit on an SM."""
    units = words.shape[1]
    columns = units * _per(units, grid)
    warps = min(WARPS, power(triton.cdiv(columns, COLUMNS)))
    several = columns > warps * COLUMNS
    return ProductTiling(16 if gated or several else 32, UNIT * units, warps)


def ones_of(dtype: torch.dtype, device: torch.device) -> Tensor:
    """[columns, columns]: two ones in each diagonal element, else zero."""
    return torch.eye(COLUMNS, dtype=torch.int32, device=device) * KINDS[dtype][2]


def _per(units: int, grid: Tensor) -> int:
    """Return the number of columns that share a unit: as few as the scales allow, at least two."""
    return 2 if units * UNIT // len(grid) % 64 == 0 else 4
