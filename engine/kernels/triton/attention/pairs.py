"""The loop over a compressed cache: converts two bytes at a time to two float16 numbers.

Few queries read many keys, so the cost is loading bytes and converting them to floats. FP8 products would not
help: with fewer than 64 rows, Hopper computes them in 16 bits, too. Three things make it cheap:

- The tensor cores need two adjacent keys in a register, and shared memory is transposed 16 bits at a
  time. So a cell is read as words of two bytes, and there are two products of half the width: one of the
  even numbers and one of the odd ones.
- Keys and values are the M side of each product, and queries the N side of 8.
- Every byte is exact in float16, and one instruction converts two of them. Scales are applied to scores and
  weights, of which there are few. The range of float16 is small, so queries are divided by a power of two,
  and weights by another one that follows the scales of the values.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.attention.online_softmax import capped, hidden, sloped, weighed
from engine.kv.store import KVLayer

# A register holds two words. The code converts its even or odd bytes to two float16. The sum of a byte and
# 1152 is built by combining their bits.
_E4M3 = """{{
    .reg .b32 bytes; .reg .b16 low, high;
    prmt.b32 bytes, $1, 0, 0x3120; mov.b32 {{low, high}}, bytes;
    cvt.rn.f16x2.e4m3x2 $0, {half};
}}"""
_INT8 = """{{
    .reg .b32 bytes, less; mov.b32 less, 0x64806480;
    shr.u32 bytes, $1, {bits}; lop3.b32 bytes, bytes, 0x00ff00ff, less, 0x6a;
    sub.rn.f16x2 $0, bytes, less;
}}"""
EVEN = {torch.float8_e4m3fn: _E4M3.format(half="low"), torch.int8: _INT8.format(bits=0)}
ODD = {torch.float8_e4m3fn: _E4M3.format(half="high"), torch.int8: _INT8.format(bits=8)}


@triton.jit
def exponent(numbers):
    """The exponent of the largest number, as stored in float32 (biased by 127)."""
    return tl.max(numbers.to(tl.int32, bitcast=True), 0) >> 23


@triton.jit
def power_of_two(exponent):
    """The power of two with that biased exponent."""
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(scales, cell):
    """Load cells' scales from words of two bfloat16: only loads of 4 bytes and more are prefetched."""
    word = tl.load(scales + (cell >> 1))
    return ((word << (16 - (cell.to(tl.int32) & 1) * 16)) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _turns(
    best, total, even, odd, top, query_even, query_odd, keys, values, key_scales, value_scales, table,
    kv_head, begin, end, position, scale, slope,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, KEPT: tl.constexpr, SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    KEYS: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, ODD: tl.constexpr,
):  # fmt: skip
    """Like online_softmax.fold. `even` and `odd` [dim / 2, rows] are in units of the power of two `top`."""
    key_at = tl.arange(0, KEY_PAD // 2)
    value_at = tl.arange(0, VALUE_PAD // 2)
    for at in tl.range(begin, end, KEYS, num_stages=STAGES):
        key = at + tl.arange(0, KEYS)
        # Beyond the end, load the last key again; it is masked below, so no load needs a mask.
        seen = tl.minimum(key, end - 1)
        block = tl.load(table + seen // BLOCK).to(tl.int64)
        cell = (block * BLOCK + seen % BLOCK) * KV_HEADS + kv_head
        of_k = keys + cell[:, None] * (KEY_DIM // 2) + key_at[None, :]
        of_v = values + cell[None, :] * (VALUE_DIM // 2) + value_at[:, None]
        if KEY_PAD == KEY_DIM:
            k = tl.load(of_k)
        else:
            k = tl.load(of_k, mask=(key_at < KEY_DIM // 2)[None, :], other=0)
        if VALUE_PAD == VALUE_DIM:
            v = tl.load(of_v)
        else:
            v = tl.load(of_v, mask=(value_at < VALUE_DIM // 2)[:, None], other=0)
        k_by = scale_of(key_scales, cell)
        v_by = scale_of(value_scales, cell)

        k_even = tl.inline_asm_elementwise(EVEN, "=r,r", [k], dtype=tl.float16, is_pure=True, pack=2)
        k_odd = tl.inline_asm_elementwise(ODD, "=r,r", [k], dtype=tl.float16, is_pure=True, pack=2)
        score = tl.dot(k_even, query_even)
        score = tl.trans(tl.dot(k_odd, query_odd, score) * (k_by * scale)[:, None])
        if SOFTCAP > 0:
            score = capped(score, SOFTCAP)
        if SLOPES:
            score = sloped(score, slope, key, position)
        if MASKED:
            score = hidden(score, key, key < end, position, WINDOW, CHUNK, KEPT, CAUSAL)
        best, total, weight, fade = weighed(best, total, score, 1.0)

        # Weights stay below 2**14, and keep all bits of a float16 down to 2**-14.
        higher = tl.maximum(top, exponent(v_by) - 13)
        fade *= power_of_two(tl.maximum(127 + top - higher, 0))
        weight = (weight * (v_by * power_of_two(254 - higher))[None, :]).to(tl.float16)
        top = higher
        v_even = tl.inline_asm_elementwise(EVEN, "=r,r", [v], dtype=tl.float16, is_pure=True, pack=2)
        v_odd = tl.inline_asm_elementwise(ODD, "=r,r", [v], dtype=tl.float16, is_pure=True, pack=2)
        weight = tl.trans(weight)
        even = tl.dot(v_even, weight, even * fade[None, :])
        odd = tl.dot(v_odd, weight, odd * fade[None, :])
    return best, total, even, odd, top


@triton.jit
def fold_packed(
    best, total, query, keys, values, key_scales, value_scales, table, kv_head, begin, end, first, position,
    scale, slope,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, KEPT: tl.constexpr, SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, ODD: tl.constexpr,
):  # fmt: skip
    """Run all turns of a program; returns the weighted values as [rows, dim]."""
    rows: tl.constexpr = query.shape[0]
    wide = query.to(tl.float32)
    greatest = tl.maximum(exponent(tl.max(tl.abs(wide), 1)), 27) - 7  # queries stay below 2**8
    scale *= power_of_two(greatest)
    query = (wide * power_of_two(254 - greatest)).to(tl.float16)
    query_even, query_odd = tl.split(tl.permute(tl.reshape(query, [rows, KEY_PAD // 2, 2]), (1, 0, 2)))
    even = tl.zeros([VALUE_PAD // 2, rows], tl.float32)
    odd = tl.zeros([VALUE_PAD // 2, rows], tl.float32)
    top = tl.full([], 14, tl.int32)
    if KEPT > 0:  # the first tokens, if the window's first piece begins after them
        behind = tl.where(begin <= tl.maximum(0, first + 1 - WINDOW), tl.minimum(KEPT, begin), 0)
        best, total, even, odd, top = _turns(
            best, total, even, odd, top, query_even, query_odd, keys, values, key_scales, value_scales, table,
            kv_head, 0, behind, position, scale, slope,
            KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES, True, False,
            KEYS, KEY_PAD, VALUE_PAD, STAGES, EVEN, ODD,
        )  # fmt: skip
    # Full turns before the tile's first query are visible to all of it.
    if QUERIES > 1 and WINDOW == 0 and CHUNK == 0:
        plain = begin + tl.maximum(tl.minimum(end, first + 1) - begin, 0) // KEYS * KEYS
        best, total, even, odd, top = _turns(
            best, total, even, odd, top, query_even, query_odd, keys, values, key_scales, value_scales, table,
            kv_head, begin, plain, position, scale, slope,
            KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES, False, True,
            KEYS, KEY_PAD, VALUE_PAD, STAGES, EVEN, ODD,
        )  # fmt: skip
        begin = plain
    best, total, even, odd, top = _turns(
        best, total, even, odd, top, query_even, query_odd, keys, values, key_scales, value_scales, table,
        kv_head, begin, end, position, scale, slope,
        KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES, True, QUERIES > 1,
        KEYS, KEY_PAD, VALUE_PAD, STAGES, EVEN, ODD,
    )  # fmt: skip
    mixed = tl.reshape(tl.permute(tl.join(even, odd), (1, 0, 2)), [rows, VALUE_PAD]) * power_of_two(top)
    return best, total, mixed


def words(layer: KVLayer) -> list[Tensor]:
    """View the cache's tensors as words of two elements: bytes as int16, scales as int32."""
    wide = {1: torch.int16, 2: torch.int32}
    scales = layer.key_scales, layer.value_scales
    found = (each for each in (layer.keys, layer.values, *scales) if each is not None)
    return [each.view(-1).view(wide[each.itemsize]) for each in found]


def in_words(scales: Tensor | None) -> Tensor | None:
    """View bfloat16 scales as words of two, for `scale_of`."""
    return None if scales is None else scales.view(-1).view(torch.int32)
