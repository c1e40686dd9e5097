"""Writes a step's keys and values to a cache in four bits, whose oracle is engine/attention/channels.py.

The first key of a group of 16 decides its centers and spreads, from the keys of the group before as they are
stored. So a program writes one head of one row, group by group, and keeps the last group in registers. Rows
that continue one another, such as drafts, are one row here: programs run in any order.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.attention.channels import NARROWEST
from engine.kernels.triton.attention.fours import CENTER, GROUP, numbers_of
from engine.kernels.triton.launch import power
from engine.kv.store import KVLayer

_NARROWEST = tl.constexpr(NARROWEST)


@triton.jit
def _greatest(low, high, AXIS: tl.constexpr):
    """The largest magnitude in both halves; NaN if there is one."""
    broken = tl.max(((low != low) | (high != high)).to(tl.int32), AXIS) > 0
    greatest = tl.maximum(tl.max(tl.abs(low), AXIS), tl.max(tl.abs(high), AXIS))
    return tl.where(broken, float("nan"), greatest)


@triton.jit
def _steps(numbers, unit, ZERO: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr):
    return tl.minimum(tl.maximum(tl.floor(tl.div_rn(numbers, unit) + ZERO), LEAST), MOST)


@triton.jit
def _packed_fours(low, high):
    """[tokens, dim / 2] twice -> bytes, and the scales [tokens]."""
    scale = tl.div_rn(_greatest(low, high, 1), CENTER).to(tl.bfloat16)
    by = scale.to(tl.float32)
    unit = tl.where(by > 0, by, 1.0)[:, None]
    low = _steps(low, unit, CENTER + 0.5, 0.0, 15.0).to(tl.int32)
    high = _steps(high, unit, CENTER + 0.5, 0.0, 15.0).to(tl.int32)
    return (low | (high << 4)).to(tl.uint8), scale


@triton.jit
def _packed_channels(low, high):
    """[dim / 2] twice -> the same in steps of a byte, and their scale."""
    scale = tl.div_rn(_greatest(low, high, 0), 127.0).to(tl.bfloat16).to(tl.float32)
    unit = tl.where(scale > 0, scale, 1.0)
    return _steps(low, unit, 0.5, -127.0, 127.0), _steps(high, unit, 0.5, -127.0, 127.0), scale


@triton.jit
def _count_of(row, starts, asked, SINGLE: tl.constexpr):
    """The tokens of a row."""
    count = 1
    if not SINGLE:
        begin = tl.load(starts + row, mask=asked, other=0)
        count = (tl.load(starts + row + 1, mask=asked, other=1) - begin).to(tl.int32)
    return count


@triton.jit
def _continues(row, starts, slots, contexts, tables, stride, BLOCK: tl.constexpr, SINGLE: tl.constexpr):
    """Whether a row begins where the row before it ends, in the same request."""
    asked = (row > 0) & (row < tl.num_programs(0))
    end = tl.load(contexts + row - 1, mask=asked, other=0).to(tl.int32)
    context = tl.load(contexts + row, mask=asked, other=0).to(tl.int32)
    meets = asked & (end > 0) & (context - _count_of(row, starts, asked, SINGLE) == end)
    if SINGLE:
        before = tl.load(slots + row - 1, mask=meets, other=-1)
        here = tl.load(slots + row, mask=meets, other=-2)
    else:  # the block that the row before writes last is its own
        last = (end - 1) // BLOCK
        before = tl.load(tables + (row - 1) * stride + last, mask=meets, other=-1)
        here = tl.load(tables + row * stride + last, mask=meets, other=-2)
    return meets & (before == here)


@triton.jit
def _write_fours(
    keys, values, key_scales, value_scales, channels, channel_scales, k, v, places, starts, slots, contexts,
    tables, k_token, k_head, v_token, v_head, table_stride,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEY_HALF: tl.constexpr,
    VALUE_HALF: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = row
    if not SINGLE:
        token = tl.load(starts + row).to(tl.int64)
    padding = tl.load(places + token) < 0
    if not (padding | _continues(row, starts, slots, contexts, tables, table_stride, BLOCK, SINGLE)):
        final = row
        while _continues(final + 1, starts, slots, contexts, tables, table_stride, BLOCK, SINGLE):
            final += 1
        slot = row
        if SINGLE:
            slot = tl.load(slots + row)
        table = tables + slot * table_stride
        KEYS: tl.constexpr = KEY_DIM // 2
        VALUES: tl.constexpr = VALUE_DIM // 2
        lane = tl.arange(0, GROUP)
        key_at = tl.arange(0, KEY_HALF)
        value_at = tl.arange(0, VALUE_HALF)
        key_there = key_at < KEYS
        value_there = value_at < VALUES
        # In the cache: a token's position in the text is higher if blocks before it were evicted.
        position = tl.load(contexts + row).to(tl.int32) - _count_of(row, starts, True, SINGLE)
        end = tl.load(contexts + final).to(tl.int32)

        # The keys of the row's last group as they are stored, and its channels.
        last = tl.maximum(position - 1, 0) // GROUP * GROUP
        block = tl.load(table + last // BLOCK).to(tl.int64)
        group = block * (BLOCK // GROUP) + last % BLOCK // GROUP
        of_channels = channels + (group * HEADS + head) * (2 * KEY_DIM) + key_at
        older = key_there & (position > 0)
        center_by = tl.load(channel_scales + (group * HEADS + head) * 2)
        spread_by = tl.load(channel_scales + (group * HEADS + head) * 2 + 1)
        center_low = tl.load(of_channels, mask=older, other=0).to(tl.float32) * center_by
        center_high = tl.load(of_channels + KEYS, mask=older, other=0).to(tl.float32) * center_by
        spread_low = tl.load(of_channels + KEY_DIM, mask=older, other=0).to(tl.float32) * spread_by
        spread_high = tl.load(of_channels + (KEY_DIM + KEYS), mask=older, other=0).to(tl.float32) * spread_by
        cell = (group * GROUP + lane) * HEADS + head
        stored = lane + last < position
        of_stored = keys + cell[:, None] * KEYS + key_at[None, :]
        kept = tl.load(of_stored, mask=stored[:, None] & key_there[None, :], other=0)
        kept_low, kept_high = numbers_of(kept, tl.float32)
        kept_by = tl.load(key_scales + cell, mask=stored, other=0.0).to(tl.float32)[:, None]
        kept_low = kept_low * kept_by * spread_low[None, :] + center_low[None, :]
        kept_high = kept_high * kept_by * spread_high[None, :] + center_high[None, :]

        for begin in range(position // GROUP * GROUP, end, GROUP):
            at = begin + lane
            mine = (at >= position) & (at < end)
            from_token = token + at - position
            place = tl.load(places + token + tl.maximum(begin, position) - position)
            group = place // GROUP
            of_k = k + from_token[:, None] * k_token + head * k_head + key_at[None, :]
            there = mine[:, None] & key_there[None, :]
            low = tl.load(of_k, mask=there, other=0.0).to(tl.float32)
            high = tl.load(of_k + KEYS, mask=there, other=0.0).to(tl.float32)

            # A new group's channels: the range of its first key and of the group before, if there is one.
            first_low = tl.sum(tl.where(lane[:, None] == 0, low, 0.0), 0)
            first_high = tl.sum(tl.where(lane[:, None] == 0, high, 0.0), 0)
            around_low = tl.where(begin > 0, kept_low, first_low[None, :])
            around_high = tl.where(begin > 0, kept_high, first_high[None, :])
            least_low = tl.minimum(tl.min(around_low, 0), first_low)
            least_high = tl.minimum(tl.min(around_high, 0), first_high)
            most_low = tl.maximum(tl.max(around_low, 0), first_low)
            most_high = tl.maximum(tl.max(around_high, 0), first_high)
            wide_low = tl.where(key_there, most_low * 0.5 - least_low * 0.5, 0.0)
            wide_high = tl.where(key_there, most_high * 0.5 - least_high * 0.5, 0.0)
            widest = _greatest(wide_low, wide_high, 0)
            wide_low = tl.where(widest > 0, tl.maximum(wide_low, widest / _NARROWEST), 1.0)
            wide_high = tl.where(widest > 0, tl.maximum(wide_high, widest / _NARROWEST), 1.0)
            wide_low, wide_high, wide_by = _packed_channels(
                tl.where(key_there, wide_low, 0.0), tl.where(key_there, wide_high, 0.0)
            )
            middle_low = tl.where(key_there, least_low * 0.5 + most_low * 0.5, 0.0)
            middle_high = tl.where(key_there, least_high * 0.5 + most_high * 0.5, 0.0)
            middle_low, middle_high, middle_by = _packed_channels(middle_low, middle_high)
            new = begin >= position
            of_channels = channels + (group * HEADS + head) * (2 * KEY_DIM) + key_at
            to = key_there & new
            tl.store(of_channels, middle_low.to(tl.int8), mask=to)
            tl.store(of_channels + KEYS, middle_high.to(tl.int8), mask=to)
            tl.store(of_channels + KEY_DIM, wide_low.to(tl.int8), mask=to)
            tl.store(of_channels + (KEY_DIM + KEYS), wide_high.to(tl.int8), mask=to)
            tl.store(channel_scales + (group * HEADS + head) * 2, middle_by, mask=new)
            tl.store(channel_scales + (group * HEADS + head) * 2 + 1, wide_by, mask=new)
            center_low = tl.where(new, middle_low * middle_by, center_low)
            center_high = tl.where(new, middle_high * middle_by, center_high)
            spread_low = tl.where(new, wide_low * wide_by, spread_low)
            spread_high = tl.where(new, wide_high * wide_by, spread_high)

            low = tl.where(there, tl.div_rn(low - center_low[None, :], spread_low[None, :]), 0.0)
            high = tl.where(there, tl.div_rn(high - center_high[None, :], spread_high[None, :]), 0.0)
            fours, by = _packed_fours(low, high)
            cell = (group * GROUP + lane) * HEADS + head
            tl.store(keys + cell[:, None] * KEYS + key_at[None, :], fours, mask=there)
            tl.store(key_scales + cell, by, mask=mine)
            low, high = numbers_of(fours, tl.float32)
            by = by.to(tl.float32)[:, None]
            kept_low = tl.where(there, low * by * spread_low[None, :] + center_low[None, :], kept_low)
            kept_high = tl.where(there, high * by * spread_high[None, :] + center_high[None, :], kept_high)

            of_v = v + from_token[:, None] * v_token + head * v_head + value_at[None, :]
            there = mine[:, None] & value_there[None, :]
            fours, by = _packed_fours(
                tl.load(of_v, mask=there, other=0.0).to(tl.float32),
                tl.load(of_v + VALUES, mask=there, other=0.0).to(tl.float32),
            )
            tl.store(values + cell[:, None] * VALUES + value_at[None, :], fours, mask=there)
            tl.store(value_scales + cell, by, mask=mine)


def write_fours(
    layer: KVLayer,
    k: Tensor,
    v: Tensor,
    places: Tensor,
    tables: Tensor,
    contexts: Tensor,
    *,
    starts: Tensor | None = None,
    slots: Tensor | None = None,
) -> None:
    """Write `k` and `v` [tokens, kv_heads, dim], possibly strided.

    `contexts`: the tokens of each row and those before it in the cache. `starts` [rows + 1]: where the tokens
    of each row of `tables` begin. Without it, each token is a row of its own, and `slots` are their rows in
    the tables. A row whose first place is -1 is not written.
    """
    assert (starts is None) is not (slots is None)
    tokens, heads, key_dim = k.shape
    value_dim, rows = v.shape[2], tokens if starts is None else len(starts) - 1
    _write_fours[(rows, heads)](
        layer.keys, layer.values, layer.key_scales, layer.value_scales, layer.channels, layer.channel_scales,
        k, v, places, starts, slots, contexts, tables,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), tables.stride(0),
        HEADS=heads, KEY_DIM=key_dim, VALUE_DIM=value_dim, KEY_HALF=power(key_dim // 2),
        VALUE_HALF=power(value_dim // 2), BLOCK=layer.block_size, SINGLE=starts is None,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
