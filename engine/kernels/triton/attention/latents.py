"""Attention over cached latents, which are keys and values of all heads: each is read once for many heads.

Queries are projected to latents before, so that a head's scores are products with whole cells, and a head's
result is a weighted sum of their first `RANK` numbers. One program handles one work item (work_plan.py) for
`PADDED` heads. Scores are in base 2.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.attention.online_softmax import hidden, weighed
from engine.kernels.triton.attention.paged import LOG2_E, empty_partials, merge
from engine.kernels.triton.attention.tiles import dim_padded
from engine.kernels.triton.attention.work_plan import AttentionWork
from engine.kernels.triton.launch import launch
from engine.kernels.triton.prefetch import bulky, prefetch_bytes
from engine.kv.store import KVLayer


@triton.jit
def _fold(
    best, total, mixed, query, turned, cells, table, begin, end, position, scale,
    RANK: tl.constexpr, ROTATED: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, KEPT: tl.constexpr,
    CAUSAL: tl.constexpr, KEYS: tl.constexpr, RANK_PAD: tl.constexpr, ROTATED_PAD: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Add the keys of begin..end to the softmax."""
    at_rank = tl.arange(0, RANK_PAD)
    at_rotated = tl.arange(0, ROTATED_PAD)
    for at in tl.range(begin, end, KEYS, num_stages=STAGES):
        key = at + tl.arange(0, KEYS)
        there = key < end
        block = tl.load(table + key // BLOCK, mask=there, other=0).to(tl.int64)
        cell = cells + (block * BLOCK + key % BLOCK) * (RANK + ROTATED)
        mask = there[:, None]
        rotated_mask = mask
        if RANK_PAD != RANK:
            mask = mask & (at_rank < RANK)[None, :]
        if ROTATED_PAD != ROTATED:
            rotated_mask = rotated_mask & (at_rotated < ROTATED)[None, :]
        latent = tl.load(cell[:, None] + at_rank[None, :], mask=mask, other=0.0)
        rotated = tl.load(cell[:, None] + RANK + at_rotated[None, :], mask=rotated_mask, other=0.0)
        score = tl.dot(turned, tl.trans(rotated), input_precision="ieee")
        score = tl.dot(query, tl.trans(latent), score, input_precision="ieee") * scale
        score = hidden(score, key, there, position, WINDOW, 0, KEPT, CAUSAL)
        best, total, weight, fade = weighed(best, total, score, 1.0)
        mixed = tl.dot(weight.to(latent.dtype), latent, mixed * fade[:, None], input_precision="ieee")
    return best, total, mixed


@triton.jit(do_not_specialize=["table_stride"])
def _attend_latents(
    out, mixes, sums, q, cells, tables, items, scale, table_stride,
    HEADS: tl.constexpr, RANK: tl.constexpr, ROTATED: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, KEPT: tl.constexpr, QUERIES: tl.constexpr, PADDED: tl.constexpr,
    KEYS: tl.constexpr, RANK_PAD: tl.constexpr, ROTATED_PAD: tl.constexpr, STAGES: tl.constexpr,
    FETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    item = items + tl.program_id(1) * 8
    row = tl.load(item).to(tl.int64)
    token = tl.load(item + 1).to(tl.int64)
    queries = tl.load(item + 2)
    first = tl.load(item + 3)
    begin = tl.load(item + 4)
    end = tl.load(item + 5)
    slot = tl.load(item + 6).to(tl.int64)
    table = tables + row * table_stride
    if FETCH:  # whole blocks, in one instruction each
        CELLS: tl.constexpr = BLOCK * (RANK + ROTATED)
        soon = tl.minimum(end, begin + STAGES * KEYS)
        for nth in range(begin // BLOCK, (soon + BLOCK - 1) // BLOCK):
            block = cells + tl.load(table + nth).to(tl.int64) * CELLS
            prefetch_bytes(block, CELLS * (cells.dtype.element_ty.primitive_bitwidth // 8))
    if PDL:  # before the wait, only data uploaded by the host is used
        tl.extra.cuda.gdc_wait()

    line = tl.arange(0, QUERIES * PADDED)
    nth = line // PADDED
    head = tl.program_id(0) * PADDED + line % PADDED
    real = (nth < queries) & (head < HEADS)
    at_rank = tl.arange(0, RANK_PAD)
    at_rotated = tl.arange(0, ROTATED_PAD)
    of_queries = q + ((token + nth) * HEADS + head) * (RANK + ROTATED)
    in_rank = real[:, None] & (at_rank < RANK)[None, :]
    query = tl.load(of_queries[:, None] + at_rank[None, :], mask=in_rank, other=0.0)
    in_rotated = real[:, None] & (at_rotated < ROTATED)[None, :]
    turned = tl.load(of_queries[:, None] + RANK + at_rotated[None, :], mask=in_rotated, other=0.0)
    # Finite, so that a row that sees no key of a turn does not compute -inf - -inf.
    best = tl.full([QUERIES * PADDED], -1e30, tl.float32)
    total = tl.zeros([QUERIES * PADDED], tl.float32)
    mixed = tl.zeros([QUERIES * PADDED, RANK_PAD], tl.float32)

    position = first + nth
    if KEPT > 0:  # the first tokens, if the window's first piece begins after them
        behind = tl.where(begin <= tl.maximum(0, first + 1 - WINDOW), tl.minimum(KEPT, begin), 0)
        best, total, mixed = _fold(
            best, total, mixed, query, turned, cells, table, 0, behind, position, scale,
            RANK, ROTATED, BLOCK, WINDOW, KEPT, False, KEYS, RANK_PAD, ROTATED_PAD, STAGES,
        )  # fmt: skip
    best, total, mixed = _fold(
        best, total, mixed, query, turned, cells, table, begin, end, position, scale,
        RANK, ROTATED, BLOCK, WINDOW, KEPT, QUERIES > 1, KEYS, RANK_PAD, ROTATED_PAD, STAGES,
    )  # fmt: skip

    if slot < 0:
        at = (token + nth) * HEADS + head
        result = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] * RANK + at_rank[None, :], result, mask=in_rank)
    else:
        at = (slot * QUERIES + nth) * HEADS + head
        tl.store(mixes + at[:, None] * RANK + at_rank[None, :], mixed, mask=in_rank)
        tl.store(sums + at * 2, best, mask=real)
        tl.store(sums + at * 2 + 1, total, mask=real)


def attend_latents(out: Tensor, q: Tensor, layer: KVLayer, tables: Tensor, work: AttentionWork) -> None:
    """Fill the rows of `out` [tokens, heads, rank] that the work covers, from absorbed queries."""
    spec, tile = layer.spec, work.tile
    mixes, sums = empty_partials(spec, work, q.device)
    rank, rotated, keys = spec.value_dim, spec.key_dim - spec.value_dim, layer.keys
    _attend_latents[(triton.cdiv(spec.heads, tile.padded), len(work.items))](
        out, mixes, sums, q, keys, tables, work.items, spec.scale * LOG2_E, tables.stride(0),
        HEADS=spec.heads, RANK=rank, ROTATED=rotated, BLOCK=layer.block_size, WINDOW=spec.window or 0,
        KEPT=spec.kept if spec.window else 0, QUERIES=tile.queries, PADDED=tile.padded, KEYS=tile.keys,
        RANK_PAD=dim_padded(rank), ROTATED_PAD=dim_padded(rotated), STAGES=tile.stages,
        FETCH=tile.fetch and bulky(keys), PDL=tile.pdl, num_warps=tile.warps, **launch(tile.pdl),
    )  # fmt: skip
    merge(out, mixes, sums, spec, work)
