"""Writes a step's keys and values to the cache."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.attention.pack import most, packed
from engine.kernels.triton.launch import launch, power
from engine.kv.store import KVLayer


@triton.jit
def _put(
    cells, scales, of, place, stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, LINES: tl.constexpr, PADDED: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Write one token's heads, `stride` apart, to its cell. A padding row's place is -1."""
    head = tl.arange(0, LINES)
    at = tl.arange(0, PADDED)
    is_head = (head < HEADS) & (place >= 0)
    there = is_head[:, None] & (at < DIM)[None, :]
    numbers = tl.load(of + head[:, None] * stride + at[None, :], mask=there, other=0.0)
    cell = place * HEADS + head
    if MOST > 0:
        numbers, scale = packed(numbers, cells.dtype.element_ty, MOST)
        tl.store(scales + cell, scale, mask=is_head)
    tl.store(cells + cell[:, None] * DIM + at[None, :], numbers, mask=there)


@triton.jit
def _write(
    keys, values, key_scales, value_scales, k, v, places, k_token, k_head, v_token, v_head,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, LINES: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, MOST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    if PDL:  # before the wait, only data uploaded by the host is read
        tl.extra.cuda.gdc_wait()
    _put(keys, key_scales, k + token * k_token, place, k_head, HEADS, KEY_DIM, LINES, KEYS, MOST)
    _put(values, value_scales, v + token * v_token, place, v_head, HEADS, VALUE_DIM, LINES, VALUES, MOST)


def write(layer: KVLayer, k: Tensor, v: Tensor, places: Tensor, *, pdl: bool) -> None:
    """Write `k` and `v` [tokens, kv_heads, dim], possibly strided, to the layer's cells; none at place -1.

    A compressed cache packs them. The reference is `CacheCells.write` of the torch backend. `pdl` as in Tile.
    In a cache of latents, `v` is `k`, and its cell is written twice.
    """
    tokens, heads, key_dim = k.shape
    value_dim, values = v.shape[2], layer.keys if layer.spec.latent else layer.values
    _write[(tokens,)](
        layer.keys, values, layer.key_scales, layer.value_scales, k, v, places,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        HEADS=heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, LINES=power(heads),
        KEYS=power(key_dim), VALUES=power(value_dim), MOST=most(layer.keys.dtype), PDL=pdl,
        num_warps=4, **launch(pdl),
    )  # fmt: skip
