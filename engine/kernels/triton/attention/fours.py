"""The loop over a cache in four bits: keys by channel, values by token (engine/attention/channels.py).

A turn is a group of 16 keys, which have centers and spreads in common. A key's score is that of its distance
from the centers, for a query times the spreads, plus the query's score of the centers. So no key is rebuilt:
four bits are exact in float16, and queries are few. As in pairs.py, keys and values are the M side of each
product, and powers of two keep queries and weights in range. A byte has a number of each half of the head, so
there are two products.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

from engine.attention.packing import MIDDLE
from engine.kernels.triton.attention.online_softmax import capped, hidden, sloped, weighed
from engine.kernels.triton.attention.pairs import exponent, power_of_two, scale_of
from engine.kv.store import GROUP as TOKENS

GROUP = tl.constexpr(TOKENS)
CENTER = tl.constexpr(MIDDLE)


@triton.jit
def numbers_of(fours, kind: tl.constexpr):
    """The numbers in the low and the high bits of each byte, as in packing.py."""
    low = (fours & 15).to(kind) - CENTER
    high = (fours >> 4).to(kind) - CENTER
    return low, high


@triton.jit
def _turns(
    best, total, low, high, top, query_low, query_high, keys, values, key_scales, value_scales, channels,
    channel_scales, table, kv_head, begin, end, position, scale, slope,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, KEPT: tl.constexpr, SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr, CAUSAL: tl.constexpr,
    KEY_HALF: tl.constexpr, VALUE_HALF: tl.constexpr, STAGES: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Like pairs._turns. `low` and `high` [dim / 2, rows] are in units of the power of two `top`."""
    KEYS: tl.constexpr = KEY_DIM // 2
    VALUES: tl.constexpr = VALUE_DIM // 2
    key_at = tl.arange(0, KEY_HALF)
    value_at = tl.arange(0, VALUE_HALF)
    for at in tl.range(begin // GROUP * GROUP, end, GROUP, num_stages=STAGES):
        key = at + tl.arange(0, GROUP)
        # Beyond the ends, load a key within again; it is masked below.
        seen = tl.minimum(tl.maximum(key, begin), end - 1)
        block = tl.load(table + seen // BLOCK).to(tl.int64)
        place = block * BLOCK + seen % BLOCK
        cell = place * KV_HEADS + kv_head
        k = tl.load(keys + cell[:, None] * KEYS + key_at[None, :], mask=(key_at < KEYS)[None, :], other=0)
        v = tl.load(
            values + cell[None, :] * VALUES + value_at[:, None], mask=(value_at < VALUES)[:, None], other=0
        )
        k_by = scale_of(key_scales, cell)
        v_by = scale_of(value_scales, cell)
        group = place // GROUP * KV_HEADS + kv_head  # the same for all keys of the turn
        center_by = tl.load(channel_scales + group * 2)
        spread_by = tl.load(channel_scales + group * 2 + 1)
        of_channels = channels + tl.max(group, 0) * (2 * KEY_DIM) + key_at
        center_low = tl.load(of_channels, mask=key_at < KEYS, other=0).to(tl.float32)
        center_high = tl.load(of_channels + KEYS, mask=key_at < KEYS, other=0).to(tl.float32)
        spread_low = tl.load(of_channels + KEY_DIM, mask=key_at < KEYS, other=0).to(tl.float32)
        spread_high = tl.load(of_channels + (KEY_DIM + KEYS), mask=key_at < KEYS, other=0).to(tl.float32)

        k_low, k_high = numbers_of(k, KIND)
        score = tl.dot(k_low, (query_low * spread_low[:, None]).to(KIND), input_precision="ieee")
        score = tl.dot(k_high, (query_high * spread_high[:, None]).to(KIND), score, input_precision="ieee")
        centered = tl.sum(query_low * center_low[:, None], 0) + tl.sum(query_high * center_high[:, None], 0)
        score = score * (k_by * spread_by)[:, None] + centered[None, :] * center_by[:, None]
        score = tl.trans(score * scale)
        if SOFTCAP > 0:
            score = capped(score, SOFTCAP)
        if SLOPES:
            score = sloped(score, slope, key, position)
        score = hidden(score, key, (key >= begin) & (key < end), position, WINDOW, CHUNK, KEPT, CAUSAL)
        best, total, weight, fade = weighed(best, total, score, 1.0)

        # Weights stay below 2**14, and keep all bits of a float16 down to 2**-14.
        higher = tl.maximum(top, exponent(v_by) - 13)
        fade *= power_of_two(tl.maximum(127 + top - higher, 0))
        weight = tl.trans((weight * (v_by * power_of_two(254 - higher))[None, :]).to(KIND))
        top = higher
        v_low, v_high = numbers_of(v, KIND)
        low = tl.dot(v_low, weight, low * fade[None, :], input_precision="ieee")
        high = tl.dot(v_high, weight, high * fade[None, :], input_precision="ieee")
    return best, total, low, high, top


@triton.jit
def fold_fours(
    best, total, queries, real, keys, values, key_scales, value_scales, channels, channel_scales, table,
    kv_head, begin, end, first, position, scale, slope,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, KEPT: tl.constexpr, SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr, QUERIES: tl.constexpr,
    KEY_HALF: tl.constexpr, VALUE_HALF: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Run all turns of a program. `queries` point to the rows' queries.

    Returns the weighted values as [rows, dim], in two halves of VALUE_HALF, each of which begins with the
    numbers of its half of the head.
    """
    rows: tl.constexpr = queries.shape[0]
    kind: tl.constexpr = tl.float32 if queries.dtype.element_ty == tl.float32 else tl.float16
    key_at = tl.arange(0, KEY_HALF)
    there = (key_at < KEY_DIM // 2)[:, None] & real[None, :]
    of_queries = queries[None, :] + key_at[:, None]
    query_low = tl.load(of_queries, mask=there, other=0.0).to(tl.float32)
    query_high = tl.load(of_queries + KEY_DIM // 2, mask=there, other=0.0).to(tl.float32)
    widest = tl.maximum(tl.max(tl.abs(query_low), 0), tl.max(tl.abs(query_high), 0))
    greatest = tl.maximum(exponent(widest), 27) - 7  # queries stay below 2**8, and below 2**15 times a spread
    scale *= power_of_two(greatest)
    query_low *= power_of_two(254 - greatest)
    query_high *= power_of_two(254 - greatest)
    low = tl.zeros([VALUE_HALF, rows], tl.float32)
    high = tl.zeros([VALUE_HALF, rows], tl.float32)
    top = tl.full([], 14, tl.int32)
    if KEPT > 0:  # the first tokens, if the window's first piece begins after them
        behind = tl.where(begin <= tl.maximum(0, first + 1 - WINDOW), tl.minimum(KEPT, begin), 0)
        best, total, low, high, top = _turns(
            best, total, low, high, top, query_low, query_high, keys, values, key_scales, value_scales,
            channels, channel_scales, table, kv_head, 0, behind, position, scale, slope,
            KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES, False, KEY_HALF,
            VALUE_HALF, STAGES, kind,
        )  # fmt: skip
    best, total, low, high, top = _turns(
        best, total, low, high, top, query_low, query_high, keys, values, key_scales, value_scales, channels,
        channel_scales, table, kv_head, begin, end, position, scale, slope,
        KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES, QUERIES > 1, KEY_HALF,
        VALUE_HALF, STAGES, kind,
    )  # fmt: skip
    mixed = tl.permute(tl.join(low, high), (1, 2, 0))  # [rows, 2, dim / 2]
    return best, total, tl.reshape(mixed, [rows, 2 * VALUE_HALF]) * power_of_two(top)
