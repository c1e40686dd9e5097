"""Draws tokens from logits on a GPU: the definition of engine/sampling/sampler.py, without a sort.

A row is cut into chunks, a program each. What a token may be drawn with is a whole number there too, so sums
over chunks are exact in any order. A filter is one number a row, the key up to which tokens are kept: the
bits of (top - score) / temperature, which order as scores do, the likeliest first. It is found four bits at
a time, by adding up for each of sixteen ways to go on how many tokens (top-k), or how much mass (top-p),
lie there. The exponential is the GPU's own, so a draw agrees with the definition but for its last bits.
"""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attention.launch import launch
from engine.kernels.attention.tiles import power
from engine.sampling.rows import COLUMNS

TEMPERATURE, TOP_K, TOP_P, MIN_P, UNIFORM = (
    tl.constexpr(COLUMNS.index(name)) for name in ("temperature", "top_k", "top_p", "min_p", "uniform")
)
MASS = tl.constexpr(2.0**48)  # of a whole row, as in the definition
EVERY = tl.constexpr(2**31 - 1)  # the limit of a row without a filter: no key lies beyond it
PASSES, WAYS, BITS = tl.constexpr(8), tl.constexpr(16), tl.constexpr(4)
FEW = 16  # rows up to which chunks are small, so that there are enough of them
TURN = 1024  # tokens that a program looks at together
SEARCHED = 512  # the same where sixteen sums are made of each


@triton.jit
def _setting(columns, row, rows, COLUMN: tl.constexpr):
    return tl.load(columns + COLUMN * rows + row)


@triton.jit
def _heat(columns, row, rows):
    """The temperature, 1 where the row is greedy."""
    heat = _setting(columns, row, rows, TEMPERATURE).to(tl.float32)
    return tl.where(heat == 0.0, 1.0, heat)


@triton.jit
def _look(logits, row, at, vocab):
    return tl.load(logits + row * vocab + at, mask=at < vocab, other=float("-inf")).to(tl.float32)


@triton.jit
def _whole(tops, sums, row, heat, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """The row's highest score, and the sum of exponentials relative to it."""
    chunk = tl.arange(0, PADDED)
    high = tl.load(tops + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
    part = tl.load(sums + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0.0)
    top = tl.max(high, 0)
    return top, tl.sum(tl.where(high > float("-inf"), part * tl.exp((high - top) / heat), part), 0)


@triton.jit
def _divided(number, by):
    """tl.div_rn where one number divides many, for which it is inverted once: a guess, and twice its rest."""
    inverse = tl.div_rn(1.0, by)
    guess = number * inverse
    better = tl.fma(tl.fma(-guess, by, number), inverse, guess)
    best = tl.fma(tl.fma(-better, by, number), inverse, better)
    return tl.where(guess == float("-inf"), guess, best)


@triton.jit
def _keys(scores, top, heat):
    """How far below the top, divided by the temperature; and the same as a whole number, for filters."""
    below = _divided(scores - top, heat)
    return below, tl.abs(below).to(tl.int32, bitcast=True)


@triton.jit
def _masses(below, key, total, top_k):
    """Chances among the tokens that top-k has kept, and those as whole numbers."""
    chance = tl.where(key <= top_k, tl.exp(below) * (1.0 / total), 0.0)
    return chance, (chance * MASS).to(tl.int64)


@triton.jit
def _step(counts, prefixes, needs, need, share, row, PASS: tl.constexpr):
    """What the search has found before this pass: the key's bits so far, and the weight still to cover."""
    prefix = 0
    left = need
    if PASS > 0:
        way = tl.arange(0, WAYS)
        count = tl.load(counts + (row * PASSES + PASS - 1) * WAYS + way)
        if PASS == 1:
            if share >= 0:  # of what there is in all
                left = tl.maximum(tl.ceil(tl.sum(count, 0).to(tl.float64) * share).to(tl.int64), 1)
        else:
            prefix = tl.load(prefixes + row * PASSES + PASS - 1)
            left = tl.load(needs + row * PASSES + PASS - 1)
        upto = tl.cumsum(count, 0)
        taken = tl.minimum(tl.sum((upto < left).to(tl.int32), 0), WAYS - 1)
        left -= tl.sum(tl.where(way < taken, count, 0), 0)
        prefix = prefix | (taken << (BITS * (PASSES - PASS)))
    return prefix, left


@triton.jit
def _limit(counts, prefixes, needs, columns, row, rows, vocab, BY_MASS: tl.constexpr):
    """The key up to which a filter keeps tokens."""
    if BY_MASS:
        share = _setting(columns, row, rows, TOP_P)
        used = share < 1.0
        need = tl.full([], 1, tl.int64)
    else:
        need = _setting(columns, row, rows, TOP_K).to(tl.int64)
        used = need < vocab
        share = tl.full([], -1.0, tl.float64)
    prefix, _ = _step(counts, prefixes, needs, need, share, row, PASSES)
    return tl.where(used, prefix, EVERY)


@triton.jit
def _scan(
    tops, places, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, TURN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Of each chunk: the highest score, where it is first, and the sum of exponentials relative to it."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    heat = _heat(columns, row, tl.num_programs(0))
    if EARLY:
        tl.extra.cuda.gdc_wait()
    cool = 1.0 / heat
    best = float("-inf")
    place = chunk * CHUNK
    total = 0.0
    for turn in range(0, CHUNK, TURN):
        at = chunk * CHUNK + turn + tl.arange(0, TURN)
        score = _look(logits, row, at, vocab)
        high = tl.max(score, 0)
        place = tl.where(high > best, tl.min(tl.where(score == high, at, EVERY), 0), place)
        higher = tl.maximum(best, high)
        anchor = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp((best - anchor) * cool) + tl.sum(tl.exp((score - anchor) * cool), 0)
        best = higher
    tl.store(tops + row * CHUNKS + chunk, best)
    tl.store(places + row * CHUNKS + chunk, place)
    tl.store(sums + row * CHUNKS + chunk, total)


@triton.jit
def _search(
    counts, prefixes, needs, k_counts, k_prefixes, k_needs, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr, TURN: tl.constexpr,
    PASS: tl.constexpr, BY_MASS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One pass of a filter: adds up the weights of the sixteen ways in which a key may go on."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    chunk = tl.program_id(1)
    heat = _heat(columns, row, rows)
    if BY_MASS:
        share = _setting(columns, row, rows, TOP_P)
        used = share < 1.0
        need = tl.full([], 1, tl.int64)
    else:
        need = _setting(columns, row, rows, TOP_K).to(tl.int64)
        used = need < vocab
        share = tl.full([], -1.0, tl.float64)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if used:
        top, total = _whole(tops, sums, row, heat, CHUNKS, PADDED)
        prefix, left = _step(counts, prefixes, needs, need, share, row, PASS)
        if chunk == 0:
            tl.store(prefixes + row * PASSES + PASS, prefix)
            tl.store(needs + row * PASSES + PASS, left)
        if BY_MASS:
            top_k = _limit(k_counts, k_prefixes, k_needs, columns, row, rows, vocab, False)
        shift: tl.constexpr = BITS * (PASSES - 1 - PASS)
        way = tl.arange(0, WAYS)
        found = tl.zeros([WAYS], tl.int64)
        for turn in range(0, CHUNK, TURN):
            at = chunk * CHUNK + turn + tl.arange(0, TURN)
            below, key = _keys(_look(logits, row, at, vocab), top, heat)
            fits = at < vocab
            if PASS > 0:
                fits = fits & ((key >> (shift + BITS)) == (prefix >> (shift + BITS)))
            if BY_MASS:
                weight = tl.where(fits, _masses(below, key, total, top_k)[1], 0)
            else:
                weight = fits.to(tl.int64)
            if tl.max(weight, 0) > 0:
                goes = (key >> shift) & (WAYS - 1)
                found += tl.sum(tl.where(goes[None, :] == way[:, None], weight[None, :], 0), 1)
        to = counts + (row * PASSES + PASS) * WAYS + way
        tl.atomic_add(to, found, mask=found > 0, sem="relaxed")


@triton.jit
def _total(
    kept, k_counts, k_prefixes, k_needs, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr, TURN: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The sums of exponentials again, of what top-k has kept."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    chunk = tl.program_id(1)
    heat = _heat(columns, row, rows)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    limit = _limit(k_counts, k_prefixes, k_needs, columns, row, rows, vocab, False)
    before = tl.load(sums + row * CHUNKS + chunk)
    total = before
    high = tl.load(tops + row * CHUNKS + chunk)
    if limit != EVERY:
        top = _whole(tops, sums, row, heat, CHUNKS, PADDED)[0]
        total = 0.0
        for turn in range(0, CHUNK, TURN):
            at = chunk * CHUNK + turn + tl.arange(0, TURN)
            score = _look(logits, row, at, vocab)
            key = _keys(score, top, heat)[1]
            total += tl.sum(tl.where(key <= limit, tl.exp((score - high) / heat), 0.0), 0)
    # A NaN is told by the sum it is in, whatever the filter has left out.
    tl.store(kept + row * CHUNKS + chunk, tl.where(before == before, total, before))


@triton.jit
def _weigh(
    masses, p_counts, p_prefixes, p_needs, k_counts, k_prefixes, k_needs, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr, TURN: tl.constexpr,
    FILTERED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """How much mass each chunk has after all filters."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    chunk = tl.program_id(1)
    heat = _heat(columns, row, rows)
    share = _setting(columns, row, rows, MIN_P).to(tl.float32)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    top, total = _whole(tops, sums, row, heat, CHUNKS, PADDED)
    top_k = EVERY
    top_p = EVERY
    if FILTERED:
        top_k = _limit(k_counts, k_prefixes, k_needs, columns, row, rows, vocab, False)
        top_p = _limit(p_counts, p_prefixes, p_needs, columns, row, rows, vocab, True)
    mass = tl.zeros([TURN], tl.int64)
    for turn in range(0, CHUNK, TURN):
        at = chunk * CHUNK + turn + tl.arange(0, TURN)
        below, key = _keys(_look(logits, row, at, vocab), top, heat)
        chance, one = _masses(below, key, total, top_k)
        mass += tl.where((key <= top_p) & (chance >= share / total), one, 0)
    tl.store(masses + row * CHUNKS + chunk, tl.sum(mass, 0))


@triton.jit
def _pick(
    out, last_ids, slots, masses, places,
    p_counts, p_prefixes, p_needs, k_counts, k_prefixes, k_needs, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr,
    FILTERED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The first token, in the vocabulary's order, up to which there is more mass than the uniform's share."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    heat = _heat(columns, row, rows)
    share = _setting(columns, row, rows, MIN_P).to(tl.float32)
    slot = tl.load(slots + row)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    top, total = _whole(tops, sums, row, heat, CHUNKS, PADDED)
    sound = (tl.abs(top) < float("inf")) & (total == total)
    token = tl.full([], 0, tl.int32)
    chunk = tl.arange(0, PADDED)
    if _setting(columns, row, rows, TEMPERATURE) == 0.0:
        high = tl.load(tops + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
        place = tl.load(places + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=EVERY)
        token = tl.min(tl.where(high == top, place, EVERY), 0)
    else:
        mass = tl.load(masses + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
        whole = tl.sum(mass, 0)
        target = (_setting(columns, row, rows, UNIFORM) * whole.to(tl.float64)).to(tl.int64)
        target = tl.minimum(target, whole - 1)
        upto = tl.cumsum(mass, 0)
        one = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), CHUNKS - 1)
        target -= tl.sum(tl.where(chunk < one, mass, 0), 0)
        top_k = EVERY
        top_p = EVERY
        if FILTERED:
            top_k = _limit(k_counts, k_prefixes, k_needs, columns, row, rows, vocab, False)
            top_p = _limit(p_counts, p_prefixes, p_needs, columns, row, rows, vocab, True)
        at = one * CHUNK + tl.arange(0, CHUNK)
        below, key = _keys(_look(logits, row, at, vocab), top, heat)
        chance, mass = _masses(below, key, total, top_k)
        mass = tl.where((key <= top_p) & (chance >= share / total), mass, 0)
        token = one * CHUNK + tl.sum((tl.cumsum(mass, 0) <= target).to(tl.int32), 0)
        sound = sound & (whole > 0)
    token = tl.where(sound, token, 0).to(tl.int64)
    tl.store(last_ids + slot, token)
    tl.store(out + row, tl.where(sound, token, -1))


def draw(
    out: Tensor,
    last_ids: Tensor,
    logits: Tensor,
    columns: Tensor,
    slots: Tensor,
    *,
    filtered: bool,
    early: bool = False,
) -> None:
    """A token for each row of [rows, vocab] logits goes to `out`, and to `last_ids` at the row's slot.

    `columns` [settings, rows] float64 as in RowsView. Without `filtered` no row has top-k or top-p. A row
    without a number to draw from gets -1 in `out`, and 0 in `last_ids`.
    """
    rows, vocab = logits.shape
    chunk = 2 * TURN if rows <= FEW else 8 * TURN
    chunks = triton.cdiv(vocab, chunk)
    grid = (rows, chunks)
    cut = {"CHUNKS": chunks, "CHUNK": chunk, "EARLY": early, **launch(early)}
    padded = power(chunks)

    def made(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=logits.device)

    tops, sums, places = (made(kind, chunks) for kind in (torch.float32, torch.float32, torch.int32))
    masses = made(torch.int64, chunks)
    _scan[grid](tops, places, sums, logits, columns, vocab, TURN=TURN, num_warps=4, **cut)
    searches = [masses] * 6  # never read
    if filtered:
        counts = torch.zeros(2, rows, PASSES.value, WAYS.value, dtype=torch.int64, device=logits.device)
        needs = torch.empty_like(counts[..., 0])
        prefixes = torch.empty_like(needs, dtype=torch.int32)
        by_mass, by_count = zip(counts, prefixes, needs, strict=True)
        searches = [*by_mass, *by_count]
        _find(by_count, by_count, tops, sums, logits, columns, grid, padded, cut, by_mass=False)
        kept = torch.empty_like(sums)
        _total[grid](
            kept, *by_count, tops, sums, logits, columns, vocab, PADDED=padded, TURN=TURN, num_warps=4, **cut
        )
        sums = kept
        _find(by_mass, by_count, tops, sums, logits, columns, grid, padded, cut, by_mass=True)
    _weigh[grid](
        masses, *searches, tops, sums, logits, columns, vocab,
        PADDED=padded, TURN=TURN, FILTERED=filtered, num_warps=4, **cut,
    )  # fmt: skip
    _pick[(rows,)](
        out, last_ids, slots, masses, places, *searches, tops, sums, logits, columns, vocab,
        PADDED=padded, FILTERED=filtered, num_warps=8, **cut,
    )  # fmt: skip


def _find(
    own: tuple[Tensor, ...],
    by_count: tuple[Tensor, ...],
    tops: Tensor,
    sums: Tensor,
    logits: Tensor,
    columns: Tensor,
    grid: tuple[int, int],
    padded: int,
    cut: dict[str, object],
    *,
    by_mass: bool,
) -> None:
    for turn in range(PASSES.value):
        _search[grid](
            *own, *by_count, tops, sums, logits, columns, logits.shape[1],
            PADDED=padded, TURN=SEARCHED, PASS=turn, BY_MASS=by_mass, num_warps=4, **cut,
        )  # fmt: skip
