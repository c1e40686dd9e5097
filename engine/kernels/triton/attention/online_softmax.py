"""The shared parts of the loops over a context, and the plain loop.

A turn is one iteration: `KEYS` keys of the context and their values.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl


@triton.jit
def capped(score, SOFTCAP: tl.constexpr):
    """cap * tanh(score / cap), for scores that are already multiplied by 2 / cap."""
    return SOFTCAP - 2 * SOFTCAP / (1 + tl.exp2(score))


@triton.jit
def sloped(score, slope, key, position):
    """Take from each score what its head loses for the tokens between the key and the query."""
    return score + slope[:, None] * (key[None, :] - position[:, None]).to(tl.float32)


@triton.jit
def oldest(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first key that a query sees, apart from the KEPT ones."""
    if CHUNK > 0:
        found = position // CHUNK * CHUNK
    elif WINDOW > 0:
        found = tl.maximum(0, position + 1 - WINDOW)
    else:
        found = position * 0
    return found


@triton.jit
def hidden(
    score, key, there, position, WINDOW: tl.constexpr, CHUNK: tl.constexpr, KEPT: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Set scores to -inf where a query does not see the key."""
    seen = there[None, :]
    if CAUSAL:
        seen = seen & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            near = key[None, :] > position[:, None] - WINDOW
            seen = seen & (near | (key < KEPT)[None, :])
        if CHUNK > 0:
            seen = seen & (key[None, :] >= oldest(position, WINDOW, CHUNK)[:, None])
    return tl.where(seen, score, float("-inf"))


@triton.jit
def weighed(best, total, score, scale):
    """Add scores, times `scale` (> 0), in base 2, to the softmax; `fade` rescales earlier sums."""
    higher = tl.maximum(best, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - higher[:, None])
    fade = tl.exp2(best - higher)
    return higher, total * fade + tl.sum(weight, 1), weight, fade


@triton.jit
def fold(
    best, total, mixed, query, keys, values, key_scales, value_scales, table, kv_head, begin, end, position,
    scale, slope,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    PACKED: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, KEPT: tl.constexpr,
    SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    KEYS: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add the keys of begin..end to the softmax. Without MASKED, all queries see all keys of full turns."""
    key_at = tl.arange(0, KEY_PAD)
    value_at = tl.arange(0, VALUE_PAD)
    for at in tl.range(begin, end, KEYS, num_stages=STAGES):
        key = at + tl.arange(0, KEYS)
        there = key < end
        block = tl.load(table + key // BLOCK, mask=there, other=0).to(tl.int64)
        cell = (block * BLOCK + key % BLOCK) * KV_HEADS + kv_head
        key_mask = there[:, None]
        value_mask = there[:, None]
        if KEY_PAD != KEY_DIM:
            key_mask = key_mask & (key_at < KEY_DIM)[None, :]
        if VALUE_PAD != VALUE_DIM:
            value_mask = value_mask & (value_at < VALUE_DIM)[None, :]
        k = tl.load(keys + cell[:, None] * KEY_DIM + key_at[None, :], mask=key_mask, other=0.0)
        v = tl.load(values + cell[:, None] * VALUE_DIM + value_at[None, :], mask=value_mask, other=0.0)
        if PACKED:  # scales are per key: apply them to the scores and the weights
            k_by = tl.load(key_scales + cell, mask=there, other=0.0).to(tl.float32)
            v_by = tl.load(value_scales + cell, mask=there, other=0.0).to(tl.float32)
            k = k.to(query.dtype)
            v = v.to(query.dtype)
            score = tl.dot(query, tl.trans(k), input_precision="ieee") * (k_by * scale)[None, :]
        else:
            score = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP > 0:
            score = capped(score, SOFTCAP)
        if SLOPES:
            score = sloped(score, slope, key, position)
        if MASKED:
            score = hidden(score, key, there, position, WINDOW, CHUNK, KEPT, CAUSAL)
        best, total, weight, fade = weighed(best, total, score, 1.0)
        if PACKED:
            weight *= v_by[None, :]
        mixed = tl.dot(weight.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
    return best, total, mixed
