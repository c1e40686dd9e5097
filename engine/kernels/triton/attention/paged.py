"""Attention of a tile of queries over a span of a row's context, and the merge of split contexts.

One program handles one work item (work_plan.py) for one key head. The query heads that share it are rows of
one product: `QUERIES` tokens x `PADDED` heads, of which `GROUP` are real. Scores are in base 2.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.kernels.triton.attention.fetch import fetch, fetched_lines
from engine.kernels.triton.attention.fours import fold_fours
from engine.kernels.triton.attention.gather import gather
from engine.kernels.triton.attention.online_softmax import fold, oldest
from engine.kernels.triton.attention.pairs import EVEN, ODD, fold_packed, in_words, words
from engine.kernels.triton.attention.pipelined import fold_pipelined
from engine.kernels.triton.attention.tiles import dim_padded
from engine.kernels.triton.attention.work_plan import AttentionWork
from engine.kernels.triton.launch import launch
from engine.kv.store import KVLayer

LOG2_E = math.log2(math.e)
MERGED = 8192  # elements of partial results that a merge loads at once
WIDEST = 256  # numbers of a value that a program merges
FEW = 16  # pieces it loads at once if there are no more; 32 take 1 to 2 us longer than 64


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    out, mixes, sums, q, keys, values, key_scales, value_scales, channels, channel_scales, sinks, slopes,
    tables, items, scale, q_token, q_head, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK: tl.constexpr, PACKED: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    KEPT: tl.constexpr, SOFTCAP: tl.constexpr, SLOPES: tl.constexpr, SINKS: tl.constexpr,
    QUERIES: tl.constexpr, PADDED: tl.constexpr, KEYS: tl.constexpr,
    KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
    AHEAD: tl.constexpr, GATHERED: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr,
    FOURS: tl.constexpr, FETCH: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0)
    item = items + tl.program_id(1) * 8
    row = tl.load(item).to(tl.int64)
    token = tl.load(item + 1).to(tl.int64)
    queries = tl.load(item + 2)
    first = tl.load(item + 3)
    begin = tl.load(item + 4)
    end = tl.load(item + 5)
    slot = tl.load(item + 6).to(tl.int64)

    table = tables + row * table_stride
    if FETCH:
        soon = tl.minimum(end, begin + STAGES * KEYS)
        fetch(keys, values, table, kv_head, begin, soon, KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, KEYS, FETCH)
    if PDL:  # before the wait, only data uploaded by the host is used
        tl.extra.cuda.gdc_wait()

    line = tl.arange(0, QUERIES * PADDED)
    nth = line // PADDED
    head = kv_head * GROUP + line % PADDED
    real = (nth < queries) & (line % PADDED < GROUP)
    key_at = tl.arange(0, KEY_PAD)
    value_at = tl.arange(0, VALUE_PAD)
    value_there = value_at < VALUE_DIM
    of_queries = q + (token + nth) * q_token + head * q_head
    query = tl.load(
        of_queries[:, None] + key_at[None, :],
        mask=real[:, None] & (key_at < KEY_DIM)[None, :],
        other=0.0,
    )
    if AHEAD and KEYS >= 64:  # a computed operand stays in registers, which makes the products cheaper
        query = tl.where(real[:, None], query, 0.0)
    # Finite, so that a row that sees no key of a turn does not compute -inf - -inf.
    best = tl.full([QUERIES * PADDED], -1e30, tl.float32)
    total = tl.zeros([QUERIES * PADDED], tl.float32)
    if SINKS:  # a sink acts as a key before all others, without a value
        opens = begin <= oldest(first, WINDOW, CHUNK)
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634  # LOG2_E
        best = tl.where(opens, sink, best)
        total = tl.where(opens, 1.0, total)
    mixed = tl.zeros([QUERIES * PADDED, VALUE_PAD], tl.float32)
    slope = tl.zeros([QUERIES * PADDED], tl.float32)
    if SLOPES:
        slope = tl.load(slopes + head, mask=real, other=0.0) * 1.4426950408889634  # LOG2_E

    position = first + nth
    if FOURS:
        HALF: tl.constexpr = VALUE_PAD // 2
        best, total, mixed = fold_fours(
            best, total, of_queries, real, keys, values, key_scales, value_scales, channels, channel_scales,
            table, kv_head, begin, end, first, position, scale, slope, KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK,
            WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES, QUERIES, KEY_PAD // 2, HALF, STAGES,
        )  # fmt: skip
        value_there = value_at % HALF < VALUE_DIM // 2
        value_at = value_at // HALF * (VALUE_DIM // 2) + value_at % HALF
    elif EVEN is not None:
        best, total, mixed = fold_packed(
            best, total, query, keys, values, key_scales, value_scales, table, kv_head, begin, end, first,
            position, scale, slope, KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES,
            QUERIES, KEYS, KEY_PAD, VALUE_PAD, STAGES, EVEN, ODD,
        )  # fmt: skip
    elif AHEAD:
        best, total, mixed = fold_pipelined(
            best, total, mixed, query, keys, values, table, tl.load(item + 7), kv_head, begin, end, first,
            position, scale, KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, SOFTCAP, GATHERED,
            KEYS, KEY_PAD, VALUE_PAD, STAGES,
        )  # fmt: skip
    else:
        if KEPT > 0:  # the first tokens, if the window's first piece begins after them
            behind = tl.where(begin <= tl.maximum(0, first + 1 - WINDOW), tl.minimum(KEPT, begin), 0)
            best, total, mixed = fold(
                best, total, mixed, query, keys, values, key_scales, value_scales, table, kv_head,
                0, behind, position, scale, slope,
                KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, PACKED, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES,
                True, False, KEYS, KEY_PAD, VALUE_PAD, STAGES,
            )  # fmt: skip
        # Full turns before the tile's first query are visible to all of it.
        if QUERIES > 1 and WINDOW == 0 and CHUNK == 0:
            plain = begin + tl.maximum(tl.minimum(end, first + 1) - begin, 0) // KEYS * KEYS
            best, total, mixed = fold(
                best, total, mixed, query, keys, values, key_scales, value_scales, table, kv_head,
                begin, plain, position, scale, slope,
                KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, PACKED, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES,
                False, True, KEYS, KEY_PAD, VALUE_PAD, STAGES,
            )  # fmt: skip
            begin = plain
        best, total, mixed = fold(
            best, total, mixed, query, keys, values, key_scales, value_scales, table, kv_head,
            begin, end, position, scale, slope,
            KV_HEADS, KEY_DIM, VALUE_DIM, BLOCK, PACKED, WINDOW, CHUNK, KEPT, SOFTCAP, SLOPES, True,
            QUERIES > 1, KEYS, KEY_PAD, VALUE_PAD, STAGES,
        )  # fmt: skip

    stored = real[:, None] & value_there[None, :]
    if slot < 0:
        at = (token + nth) * (KV_HEADS * GROUP) + head
        result = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] * VALUE_DIM + value_at[None, :], result, mask=stored)
    else:
        at = (slot * QUERIES + nth) * (KV_HEADS * GROUP) + head
        tl.store(mixes + at[:, None] * VALUE_DIM + value_at[None, :], mixed, mask=stored)
        tl.store(sums + at * 2, best, mask=real)
        tl.store(sums + at * 2 + 1, total, mask=real)


@triton.jit
def _merge(
    out, mixes, sums, merges,
    HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUE_PAD: tl.constexpr,
    QUERIES: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    PIECES: tl.constexpr = (VALUE_DIM + VALUE_PAD - 1) // VALUE_PAD
    head = tl.program_id(0) // PIECES
    nth = tl.program_id(1)
    merge = merges + tl.program_id(2) * 4
    token = tl.load(merge).to(tl.int64)
    queries = tl.load(merge + 1)
    slot = tl.load(merge + 2).to(tl.int64)
    count = tl.load(merge + 3)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if nth < queries:
        value_at = tl.program_id(0) % PIECES * VALUE_PAD + tl.arange(0, VALUE_PAD)
        best = -1e30
        total = 0.0
        mixed = tl.zeros([VALUE_PAD], tl.float32)
        for done in range(0, count, PARTS):
            part = done + tl.arange(0, PARTS)
            there = part < count
            at = ((slot + part) * QUERIES + nth) * HEADS + head
            bests = tl.load(sums + at * 2, mask=there, other=-1e30)
            totals = tl.load(sums + at * 2 + 1, mask=there, other=0.0)
            mixeds = tl.load(
                mixes + at[:, None] * VALUE_DIM + value_at[None, :],
                mask=there[:, None] & (value_at < VALUE_DIM)[None, :],
                other=0.0,
            )
            higher = tl.maximum(best, tl.max(bests, 0))
            weight = tl.exp2(bests - higher)
            fade = tl.exp2(best - higher)
            total = total * fade + tl.sum(totals * weight, 0)
            mixed = mixed * fade + tl.sum(mixeds * weight[:, None], 0)
            best = higher
        result = (mixed / total).to(out.dtype.element_ty)
        at = (token + nth) * HEADS + head
        tl.store(out + at * VALUE_DIM + value_at, result, mask=value_at < VALUE_DIM)


def attend(out: Tensor, q: Tensor, layer: KVLayer, tables: Tensor, work: AttentionWork) -> None:
    """Fill the rows of `out` [tokens, heads, value_dim] that the work covers; `q` may be strided."""
    partials = empty_partials(layer.spec, work, q.device)
    if work.tile.specialized:
        # Imported here, since importing Gluon takes a while.
        from engine.kernels.triton.attention.specialized import attend_prompts

        attend_prompts(out, *partials, q, layer, tables, work, layer.spec.scale * LOG2_E)
    else:
        _attend_tiles(out, *partials, q, layer, tables, work)
    merge(out, *partials, layer.spec, work)


def _attend_tiles(
    out: Tensor, mixes: Tensor, sums: Tensor, q: Tensor, layer: KVLayer, tables: Tensor, work: AttentionWork
) -> None:
    spec, tile = layer.spec, work.tile
    group, channels = spec.heads // spec.kv_heads, layer.channels
    key_pad, value_pad = dim_padded(spec.key_dim), dim_padded(spec.value_dim)
    cap = spec.softcap or 0.0
    keys, values, key_scales, value_scales = layer.keys, layer.values, layer.key_scales, layer.value_scales
    even = odd = None
    if work.spans is not None:
        keys, values = gather(layer, tables, work.spans, tile.keys, q.dtype)
        key_scales = value_scales = channels = None
    elif channels is not None or tile.pairs:  # two halves of a head, each padded
        key_pad, value_pad = (2 * dim_padded(dim // 2) for dim in (spec.key_dim, spec.value_dim))
        if channels is not None:
            key_scales, value_scales = in_words(key_scales), in_words(value_scales)
        else:
            keys, values, key_scales, value_scales = words(layer)
            even, odd = EVEN[layer.keys.dtype], ODD[layer.keys.dtype]
    _attend[(spec.kv_heads, len(work.items))](
        out, mixes, sums, q, keys, values, key_scales, value_scales, channels, layer.channel_scales,
        layer.sinks, layer.slopes, tables, work.items,
        spec.scale * LOG2_E * (2 / cap if cap else 1), q.stride(0), q.stride(1), tables.stride(0),
        KV_HEADS=spec.kv_heads, GROUP=group, KEY_DIM=spec.key_dim, VALUE_DIM=spec.value_dim,
        BLOCK=layer.block_size, PACKED=key_scales is not None, WINDOW=spec.window or 0,
        CHUNK=spec.chunk or 0, KEPT=spec.kept if spec.window else 0, SOFTCAP=cap * LOG2_E,
        SLOPES=layer.slopes is not None, SINKS=layer.sinks is not None,
        QUERIES=tile.queries, PADDED=tile.padded, KEYS=tile.keys,
        KEY_PAD=key_pad, VALUE_PAD=value_pad, STAGES=tile.stages, PDL=tile.pdl,
        AHEAD=tile.ahead, GATHERED=work.spans is not None, EVEN=even, ODD=odd,
        FOURS=channels is not None, FETCH=fetched_lines(layer, tile),
        num_warps=tile.warps, **launch(tile.pdl, tile.registers),
    )  # fmt: skip


def empty_partials(spec: LayerSpec, work: AttentionWork, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return room for the partial results of split contexts: mixed values, and the sums of the softmax."""
    lines = (work.partials, work.tile.queries, spec.heads)
    mixes = torch.empty(*lines, spec.value_dim, dtype=torch.float32, device=device)
    return mixes, torch.empty(*lines, 2, dtype=torch.float32, device=device)


def merge(out: Tensor, mixes: Tensor, sums: Tensor, spec: LayerSpec, work: AttentionWork) -> None:
    """Fill the rows of `out` whose contexts were split."""
    if not work.partials:
        return
    pad, tile = min(WIDEST, dim_padded(spec.value_dim)), work.tile
    _merge[(spec.heads * triton.cdiv(spec.value_dim, pad), tile.queries, len(work.merges))](
        out, mixes, sums, work.merges,
        HEADS=spec.heads, VALUE_DIM=spec.value_dim, VALUE_PAD=pad, QUERIES=tile.queries,
        PARTS=min(FEW if work.most <= FEW else MERGED, MERGED // pad), PDL=tile.pdl,
        num_warps=2, **launch(tile.pdl),
    )  # fmt: skip
