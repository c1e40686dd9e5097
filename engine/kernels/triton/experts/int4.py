"""Products of rows with 4-bit weights of their experts; the layout is that of gemm/int4_gemm.py.

The numbers are integers, or floats.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.experts.gemm import PLAIN, Gate, empty_out, finish
from engine.kernels.triton.experts.tiles import ExpertTiles, own_pairs
from engine.kernels.triton.gemm.int4_gemm import (
    FLOATS,
    SMALL_FLOATS,
    TALL,
    TILE,
    UNIT,
    floats_of_unit,
    scaled_outputs,
)
from engine.kernels.triton.gemm.tma_gemm import Tiling
from engine.kernels.triton.launch import launch


@triton.jit
def _words(words, output, UNITS: tl.constexpr):
    at = (output // 64).to(tl.int64)[:, None] * (UNITS * 64 * 32)
    return words + at + (output % 64 * 32)[:, None] + tl.arange(0, 32)[None, :]


@triton.jit(do_not_specialize=["rows"])
def _experts_int4(
    out, x, words, grid, factor, bias, pair_weights, pairs, owners, rows,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, SLOTS: tl.constexpr, SORTED: tl.constexpr,
    BY_PAIR: tl.constexpr, OUTPUTS: tl.constexpr, ALL: tl.constexpr, INPUTS: tl.constexpr,
    UNITS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr,
    GATED: tl.constexpr, STEP: tl.constexpr, UP: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    FLOATS: tl.constexpr, BIASED: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    expert, pair = own_pairs(pairs, owners, tl.program_id(1), rows, ROWS, CHOSEN, SLOTS, SORTED, BY_PAIR)
    if expert < 0:
        return
    output = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    packed = tl.minimum(output, OUTPUTS - 1) * STEP  # there may be no padding behind the last one
    known = (pair >= 0)[None, :]
    row = pair // CHOSEN if GATED else pair
    n = tl.arange(0, 32)
    own_words = words + expert.to(tl.int64) * (ALL * UNITS * 32)
    own_grid = grid + expert.to(tl.int64) * (UNITS * 128 // GROUP * ALL)
    of_words = _words(own_words, packed, UNITS)
    of_up = _words(own_words, packed + UP, UNITS)
    of_x = x + row.to(tl.int64)[None, :] * INPUTS + n[:, None]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    total_up = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in tl.range(0, UNITS, TURN, num_stages=STAGES):
        for nth in tl.static_range(TURN):
            unit = begin + nth
            at = unit * 128
            x0 = tl.load(of_x + at, mask=_fits(known, at + n, INPUTS), other=0.0)
            x1 = tl.load(of_x + (at + 32), mask=_fits(known, at + 32 + n, INPUTS), other=0.0)
            x2 = tl.load(of_x + (at + 64), mask=_fits(known, at + 64 + n, INPUTS), other=0.0)
            x3 = tl.load(of_x + (at + 96), mask=_fits(known, at + 96 + n, INPUTS), other=0.0)
            word = tl.load(of_words + unit * (64 * 32))
            w0, w1, w2, w3 = floats_of_unit(word, own_grid + packed, at, x, ALL, GROUP, FLOATS)
            total = tl.dot(w0, x0, total)
            total = tl.dot(w1, x1, total)
            total = tl.dot(w2, x2, total)
            total = tl.dot(w3, x3, total)
            if UP > 0:
                word = tl.load(of_up + unit * (64 * 32))
                w0, w1, w2, w3 = floats_of_unit(word, own_grid + packed + UP, at, x, ALL, GROUP, FLOATS)
                total_up = tl.dot(w0, x0, total_up)
                total_up = tl.dot(w1, x1, total_up)
                total_up = tl.dot(w2, x2, total_up)
                total_up = tl.dot(w3, x3, total_up)
    if factor is not None:
        own_factor = factor + expert * (2 * OUTPUTS if UP > 0 else OUTPUTS)
        total = scaled_outputs(total, own_factor, output * STEP, output < OUTPUTS)
        if UP > 0:
            total_up = scaled_outputs(total_up, own_factor, output * STEP + UP, output < OUTPUTS)
    finish(
        out, total, total_up, bias, pair_weights, expert, pair, output, rows,
        CHOSEN, OUTPUTS, GATED, STEP, UP, ALPHA, LIMIT, BIASED,
    )  # fmt: skip


@triton.jit
def _fits(known, at, INPUTS: tl.constexpr):
    if INPUTS % 128 != 0:
        known = known & (at < INPUTS)[:, None]
    return known


def experts_int4(
    x: Tensor,
    words: Tensor,
    grid: Tensor,
    outputs: int,
    tiles: ExpertTiles,
    how: Tiling,
    rows: int,
    factor: Tensor | None = None,
    *,
    gate: Gate | None = None,
    pair_weights: Tensor | None = None,
    bias: Tensor | None = None,
    floats: bool = False,
    pdl: bool = False,
) -> Tensor:
    """Like experts_gemm, with `words` [experts, tiles, units, 64, 32] and `grid` [experts, groups, outputs].

    x must have the dtype of the grid. `floats`: the numbers are floats, as they also are if the grid holds
    bytes. `factor`: of each output, [experts, outputs] in float32.
    """
    high, units = words.shape[1:3]
    out = empty_out(x, outputs, tiles, rows, gate, x.dtype)
    width = out.shape[-1]
    small = floats or grid.dtype is torch.uint32
    _experts_int4[(triton.cdiv(width, how.outputs), tiles.count)](
        out, x, words, grid, factor, bias, pair_weights, tiles.pairs, tiles.owners, rows,
        OUTPUTS=width, ALL=high * TILE, INPUTS=x.shape[1], UNITS=units, GROUP=units * UNIT // grid.shape[1],
        COLUMNS=how.outputs, TURN=how.inputs // UNIT, GATED=gate is not None,
        **(PLAIN if gate is None else gate.constants(width)), **tiles.constants,
        FLOATS=(SMALL_FLOATS if small else FLOATS)[x.dtype], BIASED=bias is not None, STAGES=how.stages,
        PDL=pdl,
        num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return out


def experts_int4_tiling(tall: int, words: Tensor, *, gated: bool) -> Tiling:
    """Return a tiling for tiles of `tall` rows, with one or two warps as in int4_gemm_tiling."""
    assert tall <= TALL
    turn = 1 if gated or tall == TALL or words.shape[2] % 2 else 2
    return Tiling(tall, 32 if tall <= 16 else TILE, turn * UNIT, warps=1 if tall <= 16 else 2, stages=3)
