"""Rotates queries and keys of one step, which are not in the cache yet, in one launch.

For models that run their own code between kernels; others rotate as they write (rope_and_cache.py). Products
and sums stay apart (`enable_fp_fusion`), so the numbers are those of torch.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power


@triton.jit
def _turn(out, x, cos, sin, HALF: tl.constexpr, PADDED: tl.constexpr):
    """One head, rounded where torch rounds."""
    at = tl.arange(0, PADDED)
    there = at < HALF
    dtype = x.dtype.element_ty
    first = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(x + HALF + at, mask=there, other=0.0).to(tl.float32)
    for half in tl.static_range(2):
        c = tl.load(cos + half * HALF + at, mask=there, other=0.0).to(tl.float32)
        s = tl.load(sin + half * HALF + at, mask=there, other=0.0).to(tl.float32)
        own = first if half == 0 else second
        other = -second if half == 0 else first
        turned = (own * c).to(dtype).to(tl.float32) + (other * s).to(dtype).to(tl.float32)
        tl.store(out + half * HALF + at, turned.to(dtype), mask=there)


@triton.jit
def _rotate(
    out_q, out_k, q, k, cos, sin, q_head, q_token, k_head, k_token,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c, s = cos + token * DIM, sin + token * DIM
    if head < QUERIES:
        out = out_q + (token * QUERIES + head) * DIM
        _turn(out, q + token * q_token + head * q_head, c, s, DIM // 2, PADDED)
    else:
        key = head - QUERIES
        out = out_k + (token * KEYS + key) * DIM
        _turn(out, k + token * k_token + key * k_head, c, s, DIM // 2, PADDED)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """[1, heads, tokens, dim], of any strides but the last; cos and sin [1, tokens, dim] -> the same.

    `pdl` as in Tile.
    """
    (_, queries, tokens, dim), keys = q.shape, k.shape[1]
    out_q, out_k = q.new_empty(1, tokens, queries, dim), k.new_empty(1, tokens, keys, dim)
    _rotate[(tokens, queries + keys)](
        out_q, out_k, q, k, cos, sin, q.stride(1), q.stride(2), k.stride(1), k.stride(2),
        QUERIES=queries, KEYS=keys, DIM=dim, PADDED=power(dim // 2), PDL=pdl, num_warps=1,
        enable_fp_fusion=False, **launch(pdl),
    )  # fmt: skip
    return out_q.transpose(1, 2), out_k.transpose(1, 2)
