"""The loop for prompts: computes the next turn's scores before it folds the current ones.

Tensor cores run asynchronously, so they stay busy while the program computes exponentials. Only the order
achieves this: a product's result is first read in the next iteration.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

from engine.kernels.triton.attention.online_softmax import capped, hidden, weighed


@triton.jit
def _find(
    table, start, at, last, BLOCK: tl.constexpr, GATHERED: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Locate a turn: the block of each key, or its index in units of KEYS if a block holds more.

    Keys beyond `last` use its block. For gathered keys, return the offset of the turn.
    """
    if GATHERED:
        found = start + at
    elif KEYS % BLOCK == 0:
        found = tl.load(table + tl.minimum(at // BLOCK + tl.arange(0, KEYS) // BLOCK, last // BLOCK))
    else:
        at = tl.minimum(at, last)
        found = tl.load(table + at // BLOCK) * (BLOCK // KEYS) + at % BLOCK // KEYS
    return found


@triton.jit
def _read(
    of, found, at, last, kv_head, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr,
    MASKED: tl.constexpr, BLOCK: tl.constexpr, GATHERED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Load the keys or values of a turn; MASKED ones are 0 beyond `last`, as gathered ones always are."""
    if GATHERED:
        lines = of.load([found, kv_head * DIM])
    else:
        column = tl.arange(0, PAD)
        if KEYS % BLOCK == 0:
            within = tl.arange(0, KEYS) % BLOCK
            block = found.to(tl.int64)[:, None] * (BLOCK * KV_HEADS * DIM)
        else:
            within = tl.arange(0, KEYS)
            block = found.to(tl.int64) * (KEYS * KV_HEADS * DIM)
        where = of + ((within * KV_HEADS + kv_head) * DIM)[:, None] + column[None, :] + block
        if MASKED:
            there = at + tl.arange(0, KEYS) <= last
            lines = tl.load(where, mask=there[:, None] & (column < DIM)[None, :], other=0.0)
        elif PAD != DIM:
            lines = tl.load(where, mask=(column < DIM)[None, :], other=0.0)
        else:
            lines = tl.load(where)
    return lines


@triton.jit
def _turns(
    best, total, mixed, score, query, keys, values, table, start, kv_head, begin, end, last, position, scale,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr, MASKED: tl.constexpr, GATHERED: tl.constexpr,
    KEYS: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the turns of begin..end, given the first one's scores; return those of the next turn."""
    found = _find(table, start, begin, last, BLOCK, GATHERED, KEYS)
    for at in tl.range(begin, end, KEYS, num_stages=STAGES):
        later = _find(table, start, at + KEYS, last, BLOCK, GATHERED, KEYS)
        k = _read(
            keys, later, at + KEYS, last, kv_head, KV_HEADS, KEY_DIM, KEY_PAD, False, BLOCK, GATHERED, KEYS
        )
        v = _read(
            values, found, at, last, kv_head, KV_HEADS, VALUE_DIM, VALUE_PAD, MASKED, BLOCK, GATHERED, KEYS
        )
        ahead = tl.dot(query, tl.trans(k), input_precision="ieee")
        by = scale
        if SOFTCAP > 0:
            score = capped(score * scale, SOFTCAP)
            by = 1.0
        if MASKED:
            key = at + tl.arange(0, KEYS)
            score = hidden(score, key, key <= last, position, 0, 0, 0, True)
        best, total, weight, fade = weighed(best, total, score, by)
        mixed = tl.dot(weight.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
        score = ahead
        found = later
    return best, total, mixed, score


@triton.jit
def fold_pipelined(
    best, total, mixed, query, keys, values, table, start, kv_head, begin, end, first, position, scale,
    KV_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr, GATHERED: tl.constexpr,
    KEYS: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Like online_softmax.fold, without a window, for keys in blocks or GATHERED (gather.py) from `start` on.

    `begin` must be a multiple of KEYS.
    """
    last = end - 1
    found = _find(table, start, begin, last, BLOCK, GATHERED, KEYS)
    k = _read(keys, found, begin, last, kv_head, KV_HEADS, KEY_DIM, KEY_PAD, False, BLOCK, GATHERED, KEYS)
    score = tl.dot(query, tl.trans(k), input_precision="ieee")
    # Full turns before the tile's first query are visible to all of it.
    plain = begin + tl.maximum(tl.minimum(end, first + 1) - begin, 0) // KEYS * KEYS
    best, total, mixed, score = _turns(
        best, total, mixed, score, query, keys, values, table, start, kv_head, begin, plain, last, position,
        scale, KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, SOFTCAP, False, GATHERED,
        KEYS, KEY_PAD, VALUE_PAD, STAGES,
    )  # fmt: skip
    best, total, mixed, score = _turns(
        best, total, mixed, score, query, keys, values, table, start, kv_head, plain, end, last, position,
        scale, KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, SOFTCAP, True, GATHERED,
        KEYS, KEY_PAD, VALUE_PAD, STAGES,
    )  # fmt: skip
    return best, total, mixed
