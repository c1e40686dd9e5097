"""Top-k and top-p on a GPU, without a sort: finds the last key of a row that is kept.

Tokens that may be the last ones kept are gathered, and the row's last program finds the limits among their
keys, bit by bit. These tokens are:

- With top-k, all up to a bound: the k-th smallest of the groups' minimum keys (groups of 128 tokens). At
  least k tokens are within it, and usually few more. The tokens top-p keeps are among them.
- Otherwise, and if k exceeds the number of groups, all tokens with one code, a coarser key of 8 bits. It is
  found 4 bits at a time, by adding up the row's tokens or mass for each of the 16 continuations.

If they do not fit in memory, the row itself is searched: slower, with the same result.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.sampling.softmax import (
    EVERY,
    TOP_K,
    TOP_P,
    heat_of,
    keys_of,
    look,
    masses_of,
    setting,
    whole,
)

GROUP = tl.constexpr(128)
ROOM = 8192  # most keys of a row that are gathered
WAYS, BITS = tl.constexpr(16), tl.constexpr(4)
COARSE = tl.constexpr(17)  # bits of a float that a code drops: it has 64 steps between powers of two
LAST = tl.constexpr(255)  # the last code; everything beyond it has that code, too
FINE = tl.constexpr(2.0**40)  # scale of exponentials as whole numbers: the top token's value
TURN = 1024  # tokens per iteration of a program
SPREAD = 512  # the same where 16 sums are computed


@triton.jit
def _filters(columns, row, rows, vocab, GROUPS: tl.constexpr):
    """top_k and top_p, whether the row uses them, and whether groups bound what top-k keeps."""
    top_k = setting(columns, row, rows, TOP_K).to(tl.int64)
    top_p = setting(columns, row, rows, TOP_P)
    return top_k, top_p, top_k < vocab, top_p < 1.0, (top_k < vocab) & (top_k <= GROUPS)


@triton.jit
def _known(tops, sums, row, heat, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """The row's highest score, its sum of exponentials, and the distance between codes."""
    top, total = whole(tops, sums, row, heat, CHUNKS, PADDED)
    chunk = tl.arange(0, PADDED)
    high = tl.load(tops + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
    apart = tl.sum(tl.where(high > float("-inf"), top - high, 0.0), 0) / CHUNKS / heat
    return top, total, tl.maximum(2 * apart, 0.25)


@triton.jit
def _codes(below, apart):
    code = (apart - below).to(tl.int32, bitcast=True) - apart.to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum(code >> COARSE, 0), LAST)


@triton.jit
def _step(counts, row, prefix, need, PASS: tl.constexpr):
    """The continuation of the code that meets the need, what it still needs, and how much it holds."""
    way = tl.arange(0, WAYS)
    count = tl.load(counts + (row * 2 + PASS) * WAYS + way)
    taken = tl.minimum(tl.sum((tl.cumsum(count, 0) < need).to(tl.int32), 0), WAYS - 1)
    need -= tl.sum(tl.where(way < taken, count, 0), 0)
    there = tl.sum(tl.where(way == taken, count, 0), 0)
    return prefix | (taken << (BITS * (1 - PASS))), need, there


@triton.jit
def _needed(counts, row, top_k, top_p, counted):
    """The number of tokens needed, or the amount of mass out of the row's total."""
    way = tl.arange(0, WAYS)
    there = tl.sum(tl.load(counts + row * 2 * WAYS + way), 0)
    return tl.where(counted, top_k, _share(there, top_p))


@triton.jit
def _share(mass, top_p):
    return tl.maximum(tl.ceil(mass.to(tl.float64) * top_p).to(tl.int64), 1)


@triton.jit
def _bound(
    bounds, found, counts, highs, tops, sums, columns, vocab,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Find the k-th smallest of the groups' minimum keys. Also resets the row's counts."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    heat = heat_of(columns, row, rows)
    top_k, _top_p, _counted, _weighed, grouped = _filters(columns, row, rows, vocab, GROUPS)
    if PDL:
        tl.extra.cuda.gdc_wait()
    tl.store(found + row, 0)
    each = tl.arange(0, 2 * WAYS)
    tl.store(counts + row * 2 * WAYS + each, tl.zeros([2 * WAYS], tl.int64))
    if grouped:
        top = whole(tops, sums, row, heat, CHUNKS, PADDED)[0]
        group = tl.arange(0, WIDE)
        high = tl.load(highs + row * GROUPS + group, mask=group < GROUPS, other=float("-inf"))
        key = keys_of(high, top, heat)[1]
        bound = tl.full([], 0, tl.int32)
        for nth in range(31):
            further = bound | (1 << (30 - nth))
            bound = tl.where(tl.sum((key < further).to(tl.int32), 0) < top_k, further, bound)
        tl.store(bounds + row, bound)


@triton.jit
def _spread(
    counts, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr, TURN: tl.constexpr,
    PASS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute how much each of the 16 continuations of a code holds."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    chunk = tl.program_id(1)
    heat = heat_of(columns, row, rows)
    top_k, top_p, counted, weighed, grouped = _filters(columns, row, rows, vocab, GROUPS)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if (counted | weighed) & (not grouped):
        top, total, apart = _known(tops, sums, row, heat, CHUNKS, PADDED)
        if PASS == 1:
            begun = _step(counts, row, 0, _needed(counts, row, top_k, top_p, counted), 0)[0]
        way = tl.arange(0, WAYS)
        found = tl.zeros([WAYS, TURN], tl.int64)  # reduced at the end, as reductions are slow
        for turn in range(0, CHUNK, TURN):
            at = chunk * CHUNK + turn + tl.arange(0, TURN)
            below, key = keys_of(look(logits, row, at, vocab), top, heat)
            code = _codes(below, apart)
            goes = code >> BITS
            fits = at < vocab
            some = True
            if PASS == 1:
                fits = fits & (goes == begun >> BITS)
                goes = code & (WAYS - 1)
                some = tl.max(fits.to(tl.int32), 0) > 0
            if some:
                weight = tl.where(counted, 1, masses_of(below, key, total, EVERY)[1])
                weight = tl.where(fits, weight, 0)
                found += tl.where(goes[None, :] == way[:, None], weight[None, :], 0)
        found = tl.sum(found, 1)
        tl.atomic_add(counts + (row * 2 + PASS) * WAYS + way, found, mask=found > 0, sem="relaxed")


@triton.jit
def _sought(counts, row, top_k, top_p, counted, grouped, ROOM: tl.constexpr):
    """The first and the last code of the gathered tokens, and what is needed there."""
    first = tl.full([], 0, tl.int32)
    last = tl.full([], LAST, tl.int32)
    need = top_k
    if not grouped:
        need = _needed(counts, row, top_k, top_p, counted)
        first, need, there = _step(counts, row, 0, need, 0)
        first, need, there = _step(counts, row, first, need, 1)
        last = first
        if counted & (top_k - need + there <= ROOM):  # all tokens that top-k keeps
            first = tl.full([], 0, tl.int32)
            need = top_k
    return first, last, need


@triton.jit
def _gather(
    keys, found, bounds, counts, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr, ROOM: tl.constexpr,
    TURN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Gather the keys in any order, and count them, including those that do not fit."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    chunk = tl.program_id(1)
    heat = heat_of(columns, row, rows)
    top_k, top_p, counted, weighed, grouped = _filters(columns, row, rows, vocab, GROUPS)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if counted | weighed:
        top, _total, apart = _known(tops, sums, row, heat, CHUNKS, PADDED)
        first, last, _need = _sought(counts, row, top_k, top_p, counted, grouped, ROOM)
        bound = tl.full([], EVERY, tl.int32)
        if grouped:
            bound = tl.load(bounds + row)
        for turn in range(0, CHUNK, TURN):
            at = chunk * CHUNK + turn + tl.arange(0, TURN)
            below, key = keys_of(look(logits, row, at, vocab), top, heat)
            code = _codes(below, apart)
            fits = (at < vocab) & (key <= bound) & (code >= first) & (code <= last)
            count = tl.sum(fits.to(tl.int32), 0)
            if count > 0:
                place = tl.atomic_add(found + row, count, sem="relaxed") - 1
                place += tl.cumsum(fits.to(tl.int32), 0)
                tl.store(keys + row * ROOM + place, key, mask=fits & (place < ROOM))


@triton.jit
def _turn(
    keys, logits, row, turn, end, vocab, listed, top, heat, apart, first, last,
    ROOM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """A turn's keys, from the gathered ones or from all, and which of them are candidates."""
    at = turn + tl.arange(0, TURN)
    if listed:
        key = tl.load(keys + row * ROOM + at, mask=at < end, other=EVERY)
        sought = at < end
    else:
        below, key = keys_of(look(logits, row, at, vocab), top, heat)
        code = _codes(below, apart)
        sought = (at < end) & (code >= first) & (code <= last)
    return key, sought


@triton.jit
def _search(
    keys, logits, row, end, vocab, listed, top, heat, apart, first, last, total, top_k, need,
    ROOM: tl.constexpr, TURN: tl.constexpr, BY_MASS: tl.constexpr,
):  # fmt: skip
    """The smallest key up to which there is as much as needed."""
    limit = tl.full([], 0, tl.int32)
    for nth in range(31):
        further = limit | (1 << (30 - nth))
        before = tl.zeros([TURN], tl.int64)
        for turn in range(0, end, TURN):
            key, sought = _turn(
                keys, logits, row, turn, end, vocab, listed, top, heat, apart, first, last, ROOM, TURN
            )
            weight = tl.full([TURN], 1, tl.int64)
            if BY_MASS:
                weight = masses_of(-key.to(tl.float32, bitcast=True), key, total, top_k)[1]
            before += tl.where(sought & (key < further), weight, 0)
        limit = tl.where(tl.sum(before, 0) < need, further, limit)
    return limit


@triton.jit
def _find(
    limits, totals, keys, found, counts, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, GROUPS: tl.constexpr, ROOM: tl.constexpr, TURN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Find the row's limits, and the sum of exponentials of what top-k keeps."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    heat = heat_of(columns, row, rows)
    top_k, top_p, counted, weighed, grouped = _filters(columns, row, rows, vocab, GROUPS)
    if PDL:
        tl.extra.cuda.gdc_wait()
    top, total, apart = _known(tops, sums, row, heat, CHUNKS, PADDED)
    by_count = tl.full([], EVERY, tl.int32)
    by_mass = tl.full([], EVERY, tl.int32)
    if counted | weighed:
        first, last, need = _sought(counts, row, top_k, top_p, counted, grouped, ROOM)
        count = tl.load(found + row)
        listed = count <= ROOM
        end = tl.where(listed, count, vocab)
        if counted:
            by_count = _search(
                keys, logits, row, end, vocab, listed, top, heat, apart, first, last, total, EVERY, need,
                ROOM, TURN, BY_MASS=False,
            )  # fmt: skip
            listed = listed & (first == 0)  # all that top-k keeps, not only those of the last code
            end = tl.where(listed, count, vocab)
            first = tl.full([], 0, tl.int32)
            last = tl.full([], LAST, tl.int32)
            kept = tl.zeros([TURN], tl.int64)
            for turn in range(0, end, TURN):
                key, sought = _turn(
                    keys, logits, row, turn, end, vocab, listed, top, heat, apart, first, last, ROOM, TURN
                )
                one = (tl.exp(-key.to(tl.float32, bitcast=True)) * FINE).to(tl.int64)
                kept += tl.where(sought & (key <= by_count), one, 0)
            # A NaN shows in the sum, whatever the filter removed.
            total = tl.where(total == total, tl.sum(kept, 0).to(tl.float32) / FINE, total)
        if weighed:
            if counted:
                mass = tl.zeros([TURN], tl.int64)
                for turn in range(0, end, TURN):
                    key, sought = _turn(
                        keys, logits, row, turn, end, vocab, listed, top, heat, apart, first, last, ROOM, TURN
                    )
                    one = masses_of(-key.to(tl.float32, bitcast=True), key, total, by_count)[1]
                    mass += tl.where(sought, one, 0)
                need = _share(tl.sum(mass, 0), top_p)
            by_mass = _search(
                keys, logits, row, end, vocab, listed, top, heat, apart, first, last, total, by_count, need,
                ROOM, TURN, BY_MASS=True,
            )  # fmt: skip
    tl.store(limits + row * 2, by_count)
    tl.store(limits + row * 2 + 1, by_mass)
    tl.store(totals + row, total)


def limits_of(
    logits: Tensor,
    columns: Tensor,
    scanned: tuple[Tensor, Tensor],
    highs: Tensor,
    chunk: int,
    room: int,
    *,
    pdl: bool,
) -> tuple[Tensor, Tensor]:
    """[rows, 2] last keys that top-k and top-p keep, and [rows] sums of what top-k keeps.

    `scanned`: the highest score of each chunk, and the sum of exponentials relative to it; `highs`: the
    highest of each group. `room`: the number of keys per row that fit in memory.
    """
    (rows, vocab), (chunks, groups) = logits.shape, (scanned[0].shape[1], highs.shape[1])

    def made(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=logits.device)

    keys, found, bounds = made(torch.int32, room), made(torch.int32), made(torch.int32)
    counts, limits, totals = made(torch.int64, 2, WAYS.value), made(torch.int32, 2), made(torch.float32)
    cut = {"CHUNKS": chunks, "PADDED": power(chunks), "GROUPS": groups, "PDL": pdl, "num_warps": 4}
    cut |= launch(pdl)
    of_row = (*scanned, logits, columns, vocab)
    _bound[(rows,)](bounds, found, counts, highs, *scanned, columns, vocab, WIDE=power(groups), **cut)
    for turn in range(2):
        _spread[(rows, chunks)](
            counts, *of_row, CHUNK=chunk, TURN=SPREAD, PASS=turn, **cut | {"num_warps": 8}
        )
    _gather[(rows, chunks)](keys, found, bounds, counts, *of_row, CHUNK=chunk, ROOM=room, TURN=TURN, **cut)
    _find[(rows,)](limits, totals, keys, found, counts, *of_row, ROOM=room, TURN=TURN, **cut)
    return limits, totals
