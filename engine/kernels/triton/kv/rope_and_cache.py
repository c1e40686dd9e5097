"""Turns the QKV product into what attention reads: norms, rotation, and the cache write."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.api.cache_spec import CacheSpec
from engine.kernels.triton.attention.pack import most, packed
from engine.kernels.triton.gemm.row_terms import RowTerms, given, narrow_of, up_of
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up, norm_scaled
from engine.kv.store import KVLayer

HEADS = 4  # per program
_DEEP = 16  # ranks of an adapter at a time


@triton.jit
def _up(
    up, rank, begin, head, outputs, at,
    DIM: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """The columns of some heads, in some rows of an adapter's `up`, which begin at multiples of 16."""
    across = tl.multiple_of((outputs + 15) // 16 * 16, 16)
    deep = begin + tl.arange(0, DEEP)[:, None, None]
    column = head[None, :, None] * DIM + at[None, None, :]
    return tl.load(up + deep * across + column, mask=(deep < rank) & (at < DIM)[None, None, :], other=0.0)


@triton.jit
def _rope_and_cache(
    q, keys, values, key_scales, value_scales, parts, weight, rope, positions, places, eps, part_stride,
    narrow, adapters, table, table_stride,
    QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr,
    HEADS: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, ROTATED: tl.constexpr,
    PER_QUERY: tl.constexpr, PARTS: tl.constexpr, TERM_PARTS: tl.constexpr, RANK: tl.constexpr,
    DEEP: tl.constexpr, MOST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, PADDED)
    # The element it is rotated with; those behind the rotated ones keep their values.
    other = tl.where(at < ROTATED, (at + ROTATED // 2) % ROTATED, at)
    ALL: tl.constexpr = QUERIES + 2 * KV_HEADS
    rotated = head < QUERIES + KV_HEADS
    there = (head < ALL)[:, None] & (at < DIM)[None, :]
    place = tl.load(places + token)
    dtype = q.dtype.element_ty
    line = head[:, None] * DIM
    if NORM:
        scale = tl.load(weight + line + at[None, :], mask=there & rotated[:, None], other=0.0).to(tl.float32)
        if ROPE:
            scale_other = tl.load(weight + line + other[None, :], mask=there & rotated[:, None], other=0.0)
            scale_other = scale_other.to(tl.float32)
    if ROPE:
        angles = rope + tl.load(positions + token) * (2 * ROTATED) + at
        cos = tl.load(angles, mask=at < ROTATED, other=1.0).to(tl.float32)[None, :]
        sin = tl.load(angles + ROTATED, mask=at < ROTATED, other=0.0).to(tl.float32)[None, :]
    if TERM_PARTS > 0:  # all heads of a program are in one module: queries, keys, or values
        first = tl.program_id(1) * HEADS
        nth = (first >= QUERIES).to(tl.int32) + (first >= QUERIES + KV_HEADS).to(tl.int32)
        own = head - tl.where(nth == 0, 0, QUERIES + (nth - 1) * KV_HEADS)
        outputs = tl.where(nth == 0, QUERIES, KV_HEADS) * DIM
        up, rank = up_of(adapters, table, token, table_stride, nth, dtype)
        columns = _up(up, rank, 0, own, outputs, at, DIM, DEEP)
    if PDL:
        tl.extra.cuda.gdc_wait()

    # Each query may have more numbers behind it: those of its gate.
    column = tl.where(head < QUERIES, head * PER_QUERY, head + QUERIES * (PER_QUERY - 1))
    row = (token * (ALL + QUERIES * (PER_QUERY - 1)) + column[:, None]) * DIM
    value = add_up(parts, row + at[None, :], there, part_stride, PARTS)
    if ROPE:  # loaded before the norm, which would wait twice otherwise
        pair = add_up(parts, row + other[None, :], there, part_stride, PARTS)
    if TERM_PARTS > 0:
        term = tl.zeros([HEADS, PADDED], tl.float32)
        stride = tl.num_programs(0) * 3 * RANK
        for begin in tl.static_range(0, RANK, DEEP):
            deep = begin + tl.arange(0, DEEP)
            of_token = narrow + (token * 3 + nth) * RANK
            by = narrow_of(of_token, deep, rank, stride, TERM_PARTS, dtype)
            if begin > 0:
                columns = _up(up, rank, begin, own, outputs, at, DIM, DEEP)
            term += tl.sum(by[:, None, None] * columns.to(tl.float32), 0)
        value += term
        if ROPE:
            pair += tl.gather(term, tl.broadcast_to(other[None, :], [HEADS, PADDED]), 1)
    value = value.to(dtype)
    kept = value
    if NORM:
        wide = value.to(tl.float32)
        shrink = tl.rsqrt(tl.sum(wide * wide, 1) / DIM + eps)[:, None]
        value = norm_scaled(wide * shrink, scale, weight, dtype)
    if ROPE:
        pair = pair.to(dtype)
        if NORM:
            pair = norm_scaled(pair.to(tl.float32) * shrink, scale_other, weight, dtype)
        value = (value.to(tl.float32) * cos).to(dtype)
        value = (value.to(tl.float32) + pair.to(tl.float32) * sin).to(dtype)

    tl.store(
        q + (token * QUERIES + head)[:, None] * DIM + at[None, :], value,
        mask=there & (head < QUERIES)[:, None],
    )  # fmt: skip
    written = tl.where(rotated[:, None], value, kept)
    is_key = rotated & (head >= QUERIES) & (place >= 0)
    is_value = (head >= QUERIES + KV_HEADS) & (head < ALL) & (place >= 0)
    cell = place * KV_HEADS + head - QUERIES
    if MOST > 0:
        written, scale = packed(written, keys.dtype.element_ty, MOST)
        tl.store(key_scales + cell, scale, mask=is_key)
        tl.store(value_scales + cell - KV_HEADS, scale, mask=is_value)
    tl.store(keys + cell[:, None] * DIM + at[None, :], written, mask=there & is_key[:, None])
    tl.store(values + (cell - KV_HEADS)[:, None] * DIM + at[None, :], written, mask=there & is_value[:, None])


def adds_terms(spec: CacheSpec, weight: Tensor | None) -> bool:
    """Whether `terms` change no bit of other rows: sums of squares depend on the heads of a program."""
    return weight is None or gcd(HEADS, spec.heads, spec.kv_heads) == HEADS


def rope_and_cache(
    parts: Tensor,
    layer: KVLayer,
    weight: Tensor | None,
    eps: float,
    rope: Tensor | None,
    positions: Tensor,
    places: Tensor,
    *,
    dtype: torch.dtype,
    per_query: int = 1,
    terms: RowTerms | None = None,
    pdl: bool = False,
) -> Tensor:
    """[parts, tokens, heads of all three] -> queries [tokens, heads, dim]; keys and values go to their cells.

    The result has `dtype`; the cache may be compressed. `weight` [heads + kv_heads, dim] is that of the query
    and key norm, if the model has one; `rope` is the table of models/rope.py, or None in layers without
    rotary positions; it may rotate only the first numbers of a head. A token with place -1 is not written.
    `per_query`: 2 if each query is followed by its gate, which is skipped. `terms`: what adapters add to the
    product, whose modules are queries, keys and values.
    """
    spec = layer.spec
    tokens, dim = parts.shape[1], spec.key_dim
    q = torch.empty(tokens, spec.heads, dim, dtype=dtype, device=parts.device)
    heads = spec.heads + 2 * spec.kv_heads
    wide = HEADS if terms is None else gcd(HEADS, spec.heads, spec.kv_heads)
    _rope_and_cache[(tokens, triton.cdiv(heads, wide))](
        q, layer.keys, layer.values, layer.key_scales, layer.value_scales, parts,
        q if weight is None else weight, q if rope is None else rope, positions, places, eps, parts.stride(0),
        QUERIES=spec.heads, KV_HEADS=spec.kv_heads, DIM=dim, PADDED=power(dim), HEADS=wide,
        NORM=weight is not None, ROPE=rope is not None, ROTATED=dim if rope is None else rope.shape[1] // 2,
        PER_QUERY=per_query, PARTS=len(parts), DEEP=0 if terms is None else min(_DEEP, terms.adapters.rank),
        MOST=most(layer.keys.dtype), PDL=pdl, **given(terms),
        num_warps=max(1, min(4, power(dim) * wide // 256)), **launch(pdl),
    )  # fmt: skip
    return q
