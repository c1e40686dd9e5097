"""Puts a step's keys and values where the cache wants them."""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attention.launch import launch
from engine.kernels.attention.tiles import power


@triton.jit
def _write(
    keys, values, k, v, places, k_token, k_head, v_token, v_head,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    if EARLY:  # what comes before the wait reads only what the host has uploaded
        tl.extra.cuda.gdc_wait()
    at = tl.arange(0, KEYS)
    there = at < HEADS * KEY_DIM
    key = tl.load(k + token * k_token + at // KEY_DIM * k_head + at % KEY_DIM, mask=there)
    tl.store(keys + place * (HEADS * KEY_DIM) + at, key, mask=there)
    at = tl.arange(0, VALUES)
    there = at < HEADS * VALUE_DIM
    value = tl.load(v + token * v_token + at // VALUE_DIM * v_head + at % VALUE_DIM, mask=there)
    tl.store(values + place * (HEADS * VALUE_DIM) + at, value, mask=there)


def write(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, places: Tensor, *, early: bool) -> None:
    """`k` and `v` [tokens, kv_heads, dim], maybe strided, into `keys` and `values` [..., kv_heads, dim].

    The oracle is `index_copy_` over the cache's cells. `early` as in Tile.
    """
    tokens, heads, key_dim = k.shape
    value_dim = v.shape[2]
    _write[(tokens,)](
        keys, values, k, v, places, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        HEADS=heads, KEY_DIM=key_dim, VALUE_DIM=value_dim,
        KEYS=power(heads * key_dim), VALUES=power(heads * value_dim), EARLY=early,
        num_warps=4, **launch(early),
    )  # fmt: skip
