"""The attention of a few tokens to the blocks before them, for eviction by attention (kv/eviction.py).

A program has a tile of keys for the query heads that share them. It stores the logarithm of each group's sum
of weights, because the softmax needs the sums of all tiles. The second kernel computes the groups' shares of
it. So a key is read once, whatever the context, and the order of additions is fixed. Scores are in base 2.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.attention.observers import FIELDS as NUMBERS
from engine.attention.observers import Observers
from engine.kernels.triton.attention.fours import GROUP
from engine.kernels.triton.attention.gather import rebuilt
from engine.kernels.triton.attention.online_softmax import capped
from engine.kernels.triton.attention.paged import LOG2_E
from engine.kernels.triton.attention.tiles import NARROW, dim_padded
from engine.kernels.triton.launch import power
from engine.kv.store import GROUP as TOKENS
from engine.kv.store import KVLayer

FIELDS = tl.constexpr(NUMBERS)
PROGRAMS = 1056  # 8 for each of 132 SMs; each one takes tiles in turn, as most steps have few observers
MOST = 2**24  # 64 MB
SHARES = 8192


@triton.jit(do_not_specialize=["first", "most", "table_stride", "tiles", "groups"])
def _sum_weights(
    sums, q, keys, key_scales, channels, channel_scales, tables, observers, first, most, tiles, groups, scale,
    q_token, q_head, table_stride,
    KV_HEADS: tl.constexpr, GROUPED: tl.constexpr, PADDED: tl.constexpr, KEY_DIM: tl.constexpr,
    KEY_PAD: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, SOFTCAP: tl.constexpr,
    PACKED: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    """Fill `sums` [most, heads, groups] for the observers from `first` on."""
    line = tl.arange(0, PADDED)
    real = line < GROUPED
    key_at = tl.arange(0, KEY_PAD)
    WIDTH: tl.constexpr = KEY_DIM // 2 if FOURS else KEY_DIM
    asked = real[:, None] & (key_at < WIDTH)[None, :]
    count = tl.minimum(tl.load(observers) - first, most)
    for item in range(tl.program_id(0), count * KV_HEADS * tiles, tl.num_programs(0)):
        nth = item // (KV_HEADS * tiles)
        kv_head = item // tiles % KV_HEADS
        begin = item % tiles * KEYS
        observer = observers + (1 + first + nth) * FIELDS
        end = tl.load(observer + 2) * BLOCK
        if begin < end:
            token = tl.load(observer).to(tl.int64)
            row = tl.load(observer + 1).to(tl.int64)
            head = kv_head * GROUPED + line
            queries = q + token * q_token + head[:, None] * q_head + key_at[None, :]
            query = tl.load(queries, mask=asked, other=0.0)

            key = begin + tl.arange(0, KEYS)
            there = key < end
            block = tl.load(tables + row * table_stride + key // BLOCK, mask=there, other=0).to(tl.int64)
            place = block * BLOCK + key % BLOCK
            if FOURS:
                low, high = rebuilt(
                    keys, key_scales, channels, channel_scales, place, place // GROUP, kv_head, there,
                    KV_HEADS, KEY_DIM, KEY_PAD, True,
                )  # fmt: skip
                upper = tl.load(queries + WIDTH, mask=asked, other=0.0).to(tl.float32)
                score = tl.dot(query.to(tl.float32), tl.trans(low), input_precision="ieee")
                score = tl.dot(upper, tl.trans(high), score, input_precision="ieee") * scale
            else:
                cell = place * KV_HEADS + kv_head
                known = there[:, None] & (key_at < KEY_DIM)[None, :]
                k = tl.load(keys + cell[:, None] * KEY_DIM + key_at[None, :], mask=known, other=0.0)
                if PACKED:  # every byte is exact in 16 bits
                    by = tl.load(key_scales + cell, mask=there, other=0.0).to(tl.float32)
                    k = k.to(tl.float32).to(query.dtype)
                    score = tl.dot(query, tl.trans(k), input_precision="ieee") * (by * scale)[None, :]
                else:
                    score = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
            if SOFTCAP > 0:
                score = capped(score, SOFTCAP)
            # A group is seen as a whole or not at all, and sums of the others are not stored.
            score = tl.reshape(score, [PADDED, KEYS // GROUP, GROUP])
            best = tl.max(score, 2)
            weight = best + tl.log2(tl.sum(tl.exp2(score - best[:, :, None]), 2))
            group = begin // GROUP + tl.arange(0, KEYS // GROUP)
            stored = real[:, None] & (group < end // GROUP)[None, :]
            at = (nth * (KV_HEADS * GROUPED) + head)[:, None] * groups + group[None, :]
            tl.store(sums + at, weight, mask=stored)


@triton.jit(do_not_specialize=["first", "groups"])
def _add_shares(
    totals, sums, sinks, observers, first, groups,
    HEADS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, SHARES: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Add each group's share of the weights, summed over heads, to `totals`."""
    nth = tl.program_id(0)
    if first + nth < tl.load(observers):
        end = tl.load(observers + (1 + first + nth) * FIELDS + 2) * (BLOCK // GROUP)
        head = tl.arange(0, PADDED)
        real = (head < HEADS)[:, None]
        of_heads = sums + (nth * HEADS + head)[:, None] * groups
        best = tl.full([PADDED], -1e30, tl.float32)
        total = tl.zeros([PADDED], tl.float32)
        if SINKS:  # a sink acts as a key
            best = tl.load(sinks + head, mask=head < HEADS, other=0.0).to(tl.float32) * 1.4426950408889634
            total += 1.0
        for at in range(0, end, SHARES):
            group = at + tl.arange(0, SHARES)
            weight = tl.load(of_heads + group[None, :], mask=real & (group < end)[None, :], other=-1e30)
            higher = tl.maximum(best, tl.max(weight, 1))
            total = total * tl.exp2(best - higher) + tl.sum(tl.exp2(weight - higher[:, None]), 1)
            best = higher
        whole = best + tl.log2(total)

        group = tl.program_id(1) * SHARES + tl.arange(0, SHARES)
        there = group < end
        weight = tl.load(of_heads + group[None, :], mask=real & there[None, :], other=-1e30)
        share = tl.sum(tl.where(real, tl.exp2(weight - whole[:, None]), 0.0), 0)
        at = totals + (first + nth) * groups + group
        tl.store(at, tl.load(at, mask=there, other=0.0) + share, mask=there)


def receive(
    q: Tensor, layer: KVLayer, tables: Tensor, observers: Observers, *, room: int = MOST, share: int = SHARES
) -> None:
    """Add the attention of the observers among `q` [tokens, heads, key_dim] to their totals.

    `room`: how many sums of weights are kept at once. `share`: how many of them a program reads at once.
    """
    spec, fours, cap = layer.spec, layer.channels is not None, layer.spec.softcap or 0.0
    most, groups = observers.totals.shape
    at_once = min(most, max(1, room // (spec.heads * groups)))
    sums = torch.empty(at_once, spec.heads, groups, dtype=torch.float32, device=q.device)
    key_pad = dim_padded(spec.key_dim // 2 if fours else spec.key_dim)
    # The compiler unrolls products in float32 element by element. A number in four bits becomes such a one.
    keys = NARROW if fours or q.dtype is torch.float32 else 64 if key_pad <= 128 else 32
    tiles = triton.cdiv(groups * TOKENS, keys)
    padded = power(spec.heads)
    shares = max(1, min(power(groups), share // padded))
    for first in range(0, most, at_once):
        _sum_weights[(min(PROGRAMS, at_once * spec.kv_heads * tiles),)](
            sums, q, layer.keys, layer.key_scales, layer.channels, layer.channel_scales, tables,
            observers.listed, first, at_once, tiles, groups,
            spec.scale * LOG2_E * (2 / cap if cap else 1), q.stride(0), q.stride(1), tables.stride(0),
            KV_HEADS=spec.kv_heads, GROUPED=spec.heads // spec.kv_heads,
            PADDED=max(NARROW, power(spec.heads // spec.kv_heads)), KEY_DIM=spec.key_dim, KEY_PAD=key_pad,
            BLOCK=layer.block_size, KEYS=keys, SOFTCAP=cap * LOG2_E, PACKED=layer.key_scales is not None,
            FOURS=fours, num_warps=4,
        )  # fmt: skip
        _add_shares[(min(at_once, most - first), triton.cdiv(groups, shares))](
            observers.totals, sums, layer.sinks, observers.listed, first, groups,
            HEADS=spec.heads, PADDED=padded, BLOCK=layer.block_size, SHARES=shares,
            SINKS=layer.sinks is not None, num_warps=4,
        )  # fmt: skip
