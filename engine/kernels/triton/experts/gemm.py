"""Products of rows with the weights of their experts, for any number of rows.

A program has some outputs of an expert, for all rows of a tile (tiles.py): a tile of the weight is one
operand of a tensor core product, the gathered rows the other. Only weights of chosen experts are read. The
product of gate and up ends with the activation; its rows are pairs. That of `down` ends with the pair's
weight, and leaves a part for each slot of a row, [chosen, rows, outputs]; the next reader adds them up.

A weight may have 8 bits, as in skinny_gemm.py; int4.py has the products for 4 bits.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.experts.tiles import ExpertTiles, own_pairs
from engine.kernels.triton.gemm.skinny_gemm import SHORT, as_operand, silu_mul
from engine.kernels.triton.gemm.tma_gemm import Tiling
from engine.kernels.triton.launch import launch

EXACT = 256  # up to this many rows parts are in float32
SQUARED = tl.constexpr(-1.0)  # in place of an alpha: relu(gate) squared


@dataclass(frozen=True, slots=True)
class Gate:
    """Where an expert's gates are among its outputs, and the activation."""

    alternating: bool = False  # else all gates are first
    alpha: float = 0.0  # 0: silu(gate) * up; else (up + 1) * gate * sigmoid(alpha * gate), both clamped
    limit: float = 0.0
    squared: bool = False  # all outputs are gates without ups: the activation is relu(gate) squared

    def width(self, outputs: int) -> int:
        """Numbers that are left of so many outputs."""
        return outputs if self.squared else outputs // 2

    def constants(self, width: int) -> dict[str, int | float]:
        if self.squared:
            return PLAIN | {"ALPHA": SQUARED.value}
        step, up = (2, 1) if self.alternating else (1, width)
        return {"STEP": step, "UP": up, "ALPHA": self.alpha, "LIMIT": self.limit}


PLAIN: dict[str, int | float] = {"STEP": 1, "UP": 0, "ALPHA": 0.0, "LIMIT": 0.0}  # without ups


@triton.jit
def activated(gate, up, ALPHA: tl.constexpr, LIMIT: tl.constexpr):
    """The activation of gates and ups of the outputs' dtype."""
    if ALPHA == 0:
        return silu_mul(gate, up)
    if ALPHA == SQUARED:
        above = tl.maximum(gate.to(tl.float32), 0.0)
        return (above * above).to(gate.dtype)
    wide = tl.minimum(gate.to(tl.float32), LIMIT)
    more = tl.minimum(tl.maximum(up.to(tl.float32), -LIMIT), LIMIT) + 1
    return (more * wide * tl.sigmoid(wide * ALPHA)).to(gate.dtype)


@triton.jit
def finish(
    out, total, total_up, bias, pair_weights, expert, pair, output, rows,
    CHOSEN: tl.constexpr, OUTPUTS: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr, UP: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Store the products [outputs, rows] of a tile, with what follows them."""
    there = output < OUTPUTS
    dtype = out.dtype.element_ty
    if BIASED:
        ALL: tl.constexpr = 2 * OUTPUTS if UP > 0 else OUTPUTS
        of = bias + expert * ALL + output * STEP
        total += tl.load(of, mask=there, other=0.0).to(tl.float32)[:, None]
        if UP > 0:
            total_up += tl.load(of + UP, mask=there, other=0.0).to(tl.float32)[:, None]
    if GATED:
        result = activated(total.to(dtype), total_up.to(dtype), ALPHA, LIMIT)
        place = pair
    else:
        result = (total * tl.load(pair_weights + pair, mask=pair >= 0, other=0.0)[None, :]).to(dtype)
        place = pair % CHOSEN * rows + pair // CHOSEN
    to = place.to(tl.int64)[None, :] * OUTPUTS + output[:, None]
    tl.store(out + to, result, mask=there[:, None] & (pair >= 0)[None, :])


@triton.jit
def _operand(w, x, SCALED: tl.constexpr, ROUNDED: tl.constexpr, SHORT: tl.constexpr):
    if ROUNDED:  # a float16 holds any FP8 number
        w = w.to(tl.float16)
    elif SHORT is not None:
        w = tl.inline_asm_elementwise(SHORT, "=r,=r,r", [w], dtype=x.dtype, is_pure=True, pack=4)
    elif SCALED:
        w = as_operand(w).to(x.dtype)
    return w


@triton.jit(do_not_specialize=["rows"])
def _experts_gemm(
    out, x, weight, weight_scale, x_scale, bias, pair_weights, pairs, owners, rows,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, SLOTS: tl.constexpr, SORTED: tl.constexpr,
    BY_PAIR: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, TURN: tl.constexpr, GATED: tl.constexpr, STEP: tl.constexpr, UP: tl.constexpr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr,
    SHORT: tl.constexpr, BIASED: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    expert, pair = own_pairs(pairs, owners, tl.program_id(1), rows, ROWS, CHOSEN, SLOTS, SORTED, BY_PAIR)
    if expert < 0:
        return
    ALL: tl.constexpr = 2 * OUTPUTS if UP > 0 else OUTPUTS
    output = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = output < OUTPUTS
    known = pair >= 0
    row = pair // CHOSEN if GATED else pair
    at = tl.arange(0, TURN)
    of_weight = weight + expert.to(tl.int64) * (ALL * INPUTS)
    of_weight += (output * (STEP * INPUTS))[:, None] + at[None, :]
    of_x = x + row.to(tl.int64)[None, :] * INPUTS + at[:, None]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    total_up = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in tl.range(0, INPUTS, TURN, num_stages=STAGES):
        there = inside[:, None]
        given = known[None, :]
        if INPUTS % TURN != 0:
            fits = begin + at < INPUTS
            there = there & fits[None, :]
            given = given & fits[:, None]
        v = tl.load(of_x + begin, mask=given, other=0.0)
        if ROUNDED:
            v = v.to(tl.float16)
        w = tl.load(of_weight + begin, mask=there, other=0.0)
        total = tl.dot(_operand(w, v, SCALED, ROUNDED, SHORT), v, total, input_precision="ieee")
        if UP > 0:
            w = tl.load(of_weight + (UP * INPUTS + begin), mask=there, other=0.0)
            w = _operand(w, v, SCALED, ROUNDED, SHORT)
            total_up = tl.dot(w, v, total_up, input_precision="ieee")
    if SCALED:
        of_scale = weight_scale + expert * ALL + output * STEP
        total *= tl.load(of_scale, mask=inside, other=0.0)[:, None]
        if UP > 0:
            total_up *= tl.load(of_scale + UP, mask=inside, other=0.0)[:, None]
    if ROUNDED:
        step = tl.load(x_scale + row, mask=known, other=0.0)[None, :]
        total *= step
        total_up *= step
    finish(
        out, total, total_up, bias, pair_weights, expert, pair, output, rows,
        CHOSEN, OUTPUTS, GATED, STEP, UP, ALPHA, LIMIT, BIASED,
    )  # fmt: skip


def experts_gemm(
    x: Tensor,
    weight: Tensor,
    tiles: ExpertTiles,
    how: Tiling,
    rows: int,
    weight_scale: Tensor | None = None,
    x_scale: Tensor | None = None,
    *,
    gate: Gate | None = None,
    pair_weights: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    pdl: bool = False,
) -> Tensor:
    """With `gate`: [rows, inputs] -> [pairs, width]. Else [pairs, inputs] -> [chosen, rows, outputs].

    `weight` [experts, outputs, inputs], `bias` [experts, outputs]. `weight_scale` [experts, outputs]: of an
    8-bit weight; `x_scale`: the scales of x if it is quantized for an FP8 weight, with `dtype` as the
    activations'. `pair_weights` [rows, chosen]: of `down`. `pdl` as in Tile.
    """
    outputs, inputs = weight.shape[1:]
    out = empty_out(x, outputs, tiles, rows, gate, dtype or x.dtype)
    width = out.shape[-1]
    short = weight.dtype is torch.uint8 and how.warps < 4
    _experts_gemm[(triton.cdiv(width, how.outputs), tiles.count)](
        out, x, weight, weight_scale, x_scale, bias, pair_weights, tiles.pairs, tiles.owners, rows,
        OUTPUTS=width, INPUTS=inputs, COLUMNS=how.outputs, TURN=how.inputs, GATED=gate is not None,
        **(PLAIN if gate is None else gate.constants(width)), **tiles.constants,
        SCALED=weight_scale is not None, ROUNDED=x_scale is not None,
        SHORT=SHORT.get(x.dtype) if short else None, BIASED=bias is not None, STAGES=how.stages, PDL=pdl,
        num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return out


def empty_out(
    x: Tensor, outputs: int, tiles: ExpertTiles, rows: int, gate: Gate | None, dtype: torch.dtype
) -> Tensor:
    """Return what a product writes; the parts of `down` are in float32 if rows are few."""
    if gate is not None:
        return torch.empty(rows * tiles.chosen, gate.width(outputs), dtype=dtype, device=x.device)
    kind = torch.float32 if rows <= EXACT else dtype
    return torch.empty(tiles.chosen, rows, outputs, dtype=kind, device=x.device)


def experts_gemm_tiling(tall: int, weight: Tensor, *, gated: bool) -> Tiling:
    """Return a tiling for tiles of `tall` rows. With two warps bytes become operands faster."""
    inputs = weight.shape[2]
    turn = 128 if inputs % 128 == 0 else 64
    if tall >= 128:
        return Tiling(tall, 64 if gated else 128, 64, warps=8, stages=3)
    if tall == 64:
        return Tiling(tall, 64, 64, warps=4, stages=4)
    if weight.itemsize == 1:
        wide = weight.shape[2] % 256 == 0
        return Tiling(tall, 32, 256 if wide and tall == 16 else 128, warps=2, stages=3)
    return Tiling(tall, 32 if gated else 64, turn, warps=4, stages=4)
