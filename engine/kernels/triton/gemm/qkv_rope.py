"""The QKV product, fused with the rotation and the cache write.

Its epilogue does the work of rope_and_cache.py. A program has one head of some tokens, in two halves, as
elements at the same index of both halves rotate together. The reference is a product followed by
`rope_and_cache`.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.tma_gemm import (
    FEWEST,
    MOST,
    SMALL,
    Tiling,
    constants,
    descriptors,
    multiplied,
)
from engine.kernels.triton.launch import launch
from engine.kernels.triton.norm.norm import Normed, length_of, norm_scaled
from engine.kv.store import KVLayer


@triton.jit
def _lay_down(to, line, kept, low, high, HALF: tl.constexpr):
    """Store both halves of a head to the cells at `line`."""
    at = line.to(tl.int64)[None, :] * (2 * HALF) + tl.arange(0, HALF)[:, None]
    tl.store(to + at, low, mask=kept[None, :])
    tl.store(to + at + HALF, high, mask=kept[None, :])


@triton.jit(do_not_specialize=["rows"])
def _qkv_rope(
    q, keys, values, tiles_of_x, tiles_of_weight, squares, norm_weight, rope, positions, places,
    rows, row_eps, eps,
    QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    ROPE: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr, WIDTH: tl.constexpr,
    PIECES: tl.constexpr, PADDED: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    top = tl.program_id(1) * ROWS
    row = top + tl.arange(0, ROWS)
    there = row < rows
    at = tl.arange(0, HALF)
    place = tl.load(places + row, mask=there, other=-1)
    if ROPE:  # cosines of both halves, negated sines of the first, sines
        position = tl.load(positions + row, mask=there, other=0)
        angles = rope + position[None, :] * (4 * HALF) + at[:, None]
        cos = tl.load(angles, mask=there[None, :], other=0.0)
        sin = tl.load(angles + 3 * HALF, mask=there[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()

    if PIECES > 0:
        length = length_of(squares, row, rows, row_eps, WIDTH, PIECES, PADDED)
    first = head * (2 * HALF)
    low, high = multiplied(
        tiles_of_x, tiles_of_weight, top, first, first + HALF, 0, WIDTH, ROWS, HALF, TURN, True, STAGES
    )
    if PIECES > 0:
        low *= length[None, :]
        high *= length[None, :]
    dtype = q.dtype.element_ty
    low = low.to(dtype)
    high = high.to(dtype)
    if head < QUERIES + KV_HEADS:
        if NORM:
            wide = low.to(tl.float32)
            wide_high = high.to(tl.float32)
            total = tl.sum(wide * wide, 0) + tl.sum(wide_high * wide_high, 0)
            shrink = tl.rsqrt(total / (2 * HALF) + eps)[None, :]
            norm_scale = tl.load(norm_weight + first + at).to(tl.float32)[:, None]
            norm_scale_high = tl.load(norm_weight + first + HALF + at).to(tl.float32)[:, None]
            low = norm_scaled(wide * shrink, norm_scale, norm_weight, dtype)
            high = norm_scaled(wide_high * shrink, norm_scale_high, norm_weight, dtype)
        if ROPE:
            wide = low.to(tl.float32)
            wide_high = high.to(tl.float32)
            along = cos.to(tl.float32)
            across = sin.to(tl.float32)
            low = ((wide * along).to(dtype).to(tl.float32) - wide_high * across).to(dtype)
            high = ((wide_high * along).to(dtype).to(tl.float32) + wide * across).to(dtype)

    if head < QUERIES:
        _lay_down(q, row * QUERIES + head, there, low, high, HALF)
    elif head < QUERIES + KV_HEADS:
        _lay_down(keys, place * KV_HEADS + head - QUERIES, place >= 0, low, high, HALF)
    else:
        _lay_down(values, place * KV_HEADS + head - QUERIES - KV_HEADS, place >= 0, low, high, HALF)


def qkv_rope(
    x: Normed,
    weight: Tensor,
    layer: KVLayer,
    norm_weight: Tensor | None,
    eps: float,
    rope: Tensor | None,
    positions: Tensor,
    places: Tensor,
    how: Tiling,
    *,
    pdl: bool = False,
) -> Tensor:
    """[tokens, inputs] -> queries [tokens, heads, dim]; keys and values are written to their cells.

    `norm_weight` [heads + kv_heads, dim] belongs to the query and key norm; `rope` and `places` as in
    rope_and_cache.
    """
    spec, tokens = layer.spec, len(x.values)
    q = torch.empty(tokens, spec.heads, spec.key_dim, dtype=x.values.dtype, device=weight.device)
    _qkv_rope[(spec.heads + 2 * spec.kv_heads, triton.cdiv(tokens, how.rows))](
        q, layer.keys, layer.values, *descriptors(x.values, weight, how), x.squares, norm_weight, rope,
        positions, places, tokens, x.eps, eps,
        QUERIES=spec.heads, KV_HEADS=spec.kv_heads, HALF=how.outputs, NORM=norm_weight is not None,
        ROPE=rope is not None, PDL=pdl, num_warps=how.warps, **constants(x, how), **launch(pdl),
    )  # fmt: skip
    return q


def qkv_rope_tiling(rows: int, weight: Tensor, layer: KVLayer) -> Tiling | None:
    """None: separate kernels are faster, or the heads or the cache have an unsupported format."""
    dim, inputs = layer.spec.key_dim, weight.shape[1]
    fits = dim == layer.spec.value_dim and dim in (32, 64, 128)
    if not fits or layer.keys.dtype is not weight.dtype or weight.itemsize != 2 or inputs % 128:
        return None
    small = weight.numel() <= SMALL
    if not FEWEST <= rows <= (MOST if small else 64):
        return None
    if small and rows <= 64 and inputs % 256 == 0:
        return Tiling(16, dim // 2, 256, warps=4, stages=3)
    return Tiling(32 if small and rows <= 128 else 64, dim // 2, 128, warps=4, stages=4)
