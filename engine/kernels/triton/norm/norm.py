"""The RMS norm, with the residual addition before it: x += the last product, or its norm; the norm of x.

A product may come in parts, [parts, tokens, width] in float32, if its sums were split over programs
(skinny_gemm.py); the kernel that reads it adds them up. A norm may be computed in two steps: everything but
the division by the row's norm first (linear_residual_norm.py), and the division after the next product. Its
weight is in float32 if it is applied before the result is rounded (1 + weight, as in Gemma and Qwen3.5). For
a product in FP8 the norm is rounded to FP8, too, with the numbers that quantize_fp8.py would give.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.quantize_fp8 import fp8_rows, fp8_scale, to_fp8
from engine.kernels.triton.gemm.row_terms import RowTerms, given, narrow_of, up_of
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.padding import padded_rows

_REGISTERS = 144  # with adapters: it starts beside two programs of `skinny_gemm_shrink`


@dataclass(frozen=True, slots=True)
class Normed:
    """The input of a product: [rows, width] after a norm, before the norm's last step, or rounded to FP8."""

    values: Tensor
    squares: Tensor | None = None  # [pieces, rows]: partial sums of squares; None: the norm is complete
    eps: float = 0.0
    steps: Tensor | None = None  # [rows]: the scales of values in FP8; None: they are not rounded
    unrounded: torch.dtype | None = None  # the dtype of values before they were rounded

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the product."""
        return self.unrounded or self.values.dtype


@triton.jit
def add_up(parts, at, mask, stride, PARTS: tl.constexpr):
    """The sum of a product's parts, in float32."""
    total = tl.load(parts + at, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * stride + at, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def length_of(squares, row, rows, eps, WIDTH: tl.constexpr, PIECES: tl.constexpr, PADDED: tl.constexpr):
    """The factor that completes the norm in a product of half-normed rows, from the sums of squares."""
    piece = tl.arange(0, PADDED)
    there = (piece < PIECES)[:, None] & (row < rows)[None, :]
    pieces = tl.load(squares + piece[:, None] * rows + row[None, :], mask=there, other=0.0)
    return tl.rsqrt(tl.sum(pieces, 0) / WIDTH + eps)


@triton.jit
def norm_scaled(even, scale, weight, dtype: tl.constexpr):
    """Apply a norm's weight, already loaded as `scale`: after rounding, unless the weight is in float32."""
    if weight.dtype.element_ty != tl.float32:
        even = even.to(dtype).to(tl.float32)
    return (even * scale).to(dtype)


@triton.jit
def _term(
    narrow, up, rank, token, at,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """What a token's adapter adds. Rows of its `up` begin at multiples of 16."""
    deep = tl.arange(0, RANK)
    of_token = narrow + token * RANK
    by = narrow_of(of_token, deep, rank, tl.num_programs(0) * RANK, PARTS, dtype)
    columns = up + deep[:, None] * ((WIDTH + 15) // 16 * 16) + at[None, :]
    w = tl.load(columns, mask=(deep < rank)[:, None] & (at < WIDTH)[None, :], other=0.0)
    return tl.sum(by[:, None] * w.to(tl.float32), 0)


@triton.jit
def _norm(
    out, steps, x, parts, term_weight, weight, term_eps, eps, part_stride,
    narrow, adapters, table, table_stride,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, TERM_PARTS: tl.constexpr,
    RANK: tl.constexpr, TERM: tl.constexpr, ROUNDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    there = at < WIDTH
    scale = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    dtype = x.dtype.element_ty
    if TERM_PARTS > 0:
        up, rank = up_of(adapters, table, token, table_stride, 0, dtype)
    if TERM:
        term_scale = tl.load(term_weight + at, mask=there, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + token * WIDTH + at, mask=there, other=0.0)
    if PARTS > 0:
        added = add_up(parts, token * WIDTH + at, there, part_stride, PARTS)
        if TERM_PARTS > 0:
            added += _term(narrow, up, rank, token, at, WIDTH, TERM_PARTS, RANK, dtype)
        added = added.to(dtype).to(tl.float32)
        if TERM:
            added *= tl.rsqrt(tl.sum(added * added) / WIDTH + term_eps)
            added = norm_scaled(added, term_scale, term_weight, dtype).to(tl.float32)
        value = (value.to(tl.float32) + added).to(dtype)
        tl.store(x + token * WIDTH + at, value, mask=there)
    wide = value.to(tl.float32)
    even = wide * tl.rsqrt(tl.sum(wide * wide) / WIDTH + eps)
    result = norm_scaled(even, scale, weight, value.dtype)
    if ROUNDED:
        wide = result.to(tl.float32)
        step = fp8_scale(wide, 0)
        tl.store(steps + token, step)
        result = to_fp8(wide, step)
    tl.store(out + token * WIDTH + at, result, mask=there)


def norm(x: Tensor, parts: Tensor | None, weight: Tensor, eps: float, *, pdl: bool = False) -> Tensor:
    """[tokens, width]. `parts` are first added to x, in place. `pdl` as in Tile."""
    return normed(x, parts, weight, eps, rounded=False, pdl=pdl).values


def normed(
    x: Tensor,
    parts: Tensor | None,
    weight: Tensor,
    eps: float,
    *,
    terms: RowTerms | None = None,
    term: tuple[Tensor, float] | None = None,
    rounded: bool,
    pdl: bool = False,
) -> Normed:
    """Like `norm`. `rounded`: to FP8. `terms`: what adapters add to the product, which is one module. `term`:
    weight and epsilon of a norm of `parts` with what adapters add.
    """
    tokens, width = x.shape
    out, padded = empty_normed(tokens, width, like=x, rounded=rounded), power(width)
    _norm[(tokens,)](
        out.values, x if out.steps is None else out.steps, x, x if parts is None else parts,
        None if term is None else term[0], weight, 0.0 if term is None else term[1], eps,
        0 if parts is None else parts.stride(0), WIDTH=width, PADDED=padded,
        PARTS=0 if parts is None else len(parts), TERM=term is not None, ROUNDED=rounded, PDL=pdl,
        **given(terms), num_warps=min(8, max(1, padded // 512)),
        **launch(pdl, None if terms is None else _REGISTERS),
    )  # fmt: skip
    return out


def empty_normed(rows: int, width: int, *, like: Tensor, rounded: bool) -> Normed:
    if not rounded:
        return Normed(padded_rows(rows, width, like=like))
    values, steps = fp8_rows(rows, width, device=like.device)
    return Normed(values, steps=steps, unrounded=like.dtype)
