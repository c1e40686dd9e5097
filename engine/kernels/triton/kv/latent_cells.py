"""Writes latents to the cache, normed and rotated, and rotates the queries that read them."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up, norm_scaled
from engine.kv.store import KVLayer

HEADS = 8  # per program


@triton.jit
def _turned(
    x, at, mask, stride, cos, sin,
    ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr, PARTS: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Rotate numbers of x by their position's angle."""
    if INTERLEAVED:
        other = at ^ 1
    else:
        other = (at + ROTATED // 2) % ROTATED
    value = add_up(x, at[None, :], mask, stride, PARTS).to(dtype)
    pair = add_up(x, other[None, :], mask, stride, PARTS).to(dtype)
    value = (value.to(tl.float32) * cos).to(dtype)
    return (value.to(tl.float32) + pair.to(tl.float32) * sin).to(dtype)


@triton.jit
def _latent_cells(
    out, cells, queries, latents, weight, rope, positions, places, eps,
    q_part, q_token, q_head, part_stride, token_stride,
    QUERIES: tl.constexpr, RANK: tl.constexpr, ROTATED: tl.constexpr, RANK_PAD: tl.constexpr,
    ROTATED_PAD: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr, Q_PARTS: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    dtype = out.dtype.element_ty
    at = tl.arange(0, ROTATED_PAD)
    inside = at < ROTATED
    angles = rope + tl.load(positions + token) * (2 * ROTATED) + at
    cos = tl.load(angles, mask=inside, other=1.0).to(tl.float32)[None, :]
    sin = tl.load(angles + ROTATED, mask=inside, other=0.0).to(tl.float32)[None, :]
    place = tl.load(places + token)
    at_rank = tl.arange(0, RANK_PAD)
    in_rank = at_rank < RANK
    scale = tl.load(weight + at_rank, mask=in_rank, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if first < QUERIES:
        head = first + tl.arange(0, HEADS)
        mask = (head < QUERIES)[:, None] & inside[None, :]
        of_heads = queries + token * q_token + head[:, None] * q_head
        query = _turned(of_heads, at, mask, q_part, cos, sin, ROTATED, INTERLEAVED, Q_PARTS, dtype)
        line = (token * QUERIES + head[:, None]) * (RANK + ROTATED) + RANK
        tl.store(out + line + at[None, :], query, mask=mask)
    else:  # the last program of a token
        given = latents + token * token_stride
        latent = add_up(given, at_rank, in_rank, part_stride, PARTS).to(dtype)
        wide = latent.to(tl.float32)
        even = wide * tl.rsqrt(tl.sum(wide * wide) / RANK + eps)
        cell = cells + place * (RANK + ROTATED)
        tl.store(cell + at_rank, norm_scaled(even, scale, weight, dtype), mask=in_rank & (place >= 0))
        one = tl.arange(0, 1)[:, None]
        there = inside[None, :]
        of_key = given + RANK + one
        key = _turned(of_key, at, there, part_stride, cos, sin, ROTATED, INTERLEAVED, PARTS, dtype)
        tl.store(cell + RANK + one + at[None, :], key, mask=there & (place >= 0))


def latent_cells(
    out: Tensor,
    queries: Tensor,
    latents: Tensor,
    layer: KVLayer,
    weight: Tensor,
    eps: float,
    rope: Tensor,
    positions: Tensor,
    places: Tensor,
    *,
    interleaved: bool,
    pdl: bool = False,
) -> None:
    """Norm and rotate `latents` [parts, tokens, key_dim] into their cells; none at place -1.

    The last numbers of `queries` [parts, tokens, heads, ...] are rotated into the last ones of `out` [tokens,
    heads, key_dim]. Parts are added up first (norm.py). `rope` is the table of models/rope.py.
    """
    spec = layer.spec
    rotated = spec.rotary_dim
    parts, tokens, heads, _ = queries.shape
    queries = queries[..., -rotated:]
    _latent_cells[(tokens, triton.cdiv(heads, HEADS) + 1)](
        out, layer.keys, queries, latents, weight, rope, positions, places, eps,
        queries.stride(0), queries.stride(1), queries.stride(2), latents.stride(0), latents.stride(1),
        QUERIES=heads, RANK=spec.value_dim, ROTATED=rotated, RANK_PAD=power(spec.value_dim),
        ROTATED_PAD=power(rotated), HEADS=HEADS, INTERLEAVED=interleaved, Q_PARTS=parts, PARTS=len(latents),
        PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
