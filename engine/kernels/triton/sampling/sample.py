"""Samples tokens from logits on a GPU, without a sort; engine/sampling/sampler.py is the definition.

A row is split into chunks, one program each, which find the highest score and the mass of each chunk; the
last kernel finds the token in one of them. For rows with top-k or top-p, filters.py finds the tokens they
keep. The kernels use the GPU's exponential, so probabilities match the definition except for the last bits.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.sampling.filters import GROUP, ROOM, limits_of
from engine.kernels.triton.sampling.softmax import (
    EVERY,
    MIN_P,
    TEMPERATURE,
    UNIFORM,
    heat_of,
    keys_of,
    look,
    masses_of,
    setting,
    whole,
)

FEW = 16  # up to this many rows chunks are small, so that there are enough of them
TURN = 1024  # tokens per iteration of a program


@triton.jit
def _scan(
    tops, places, sums, highs, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, TURN: tl.constexpr, FILTERED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """For each chunk: its highest score, the first index of it, and the sum of exponentials relative to it.

    For the filters also the highest score of each group.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    heat = heat_of(columns, row, tl.num_programs(0))
    if PDL:
        tl.extra.cuda.gdc_wait()
    cool = 1.0 / heat
    best = float("-inf")
    place = chunk * CHUNK
    total = 0.0
    for turn in range(0, CHUNK, TURN):
        at = chunk * CHUNK + turn + tl.arange(0, TURN)
        score = look(logits, row, at, vocab)
        high = tl.max(score, 0)
        place = tl.where(high > best, tl.min(tl.where(score == high, at, EVERY), 0), place)
        higher = tl.maximum(best, high)
        anchor = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp((best - anchor) * cool) + tl.sum(tl.exp((score - anchor) * cool), 0)
        best = higher
        if FILTERED:
            group = row * (CHUNKS * CHUNK // GROUP) + (chunk * CHUNK + turn) // GROUP
            group += tl.arange(0, TURN // GROUP)
            tl.store(highs + group, tl.max(tl.reshape(score, [TURN // GROUP, GROUP]), 1))
    tl.store(tops + row * CHUNKS + chunk, best)
    tl.store(places + row * CHUNKS + chunk, place)
    tl.store(sums + row * CHUNKS + chunk, total)


@triton.jit
def _known(
    limits, totals, tops, sums, row, heat,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, FILTERED: tl.constexpr,
):  # fmt: skip
    """The row's highest score, the sum of what top-k keeps, and the last keys that top-k and top-p keep."""
    top, total = whole(tops, sums, row, heat, CHUNKS, PADDED)
    top_k = EVERY
    top_p = EVERY
    if FILTERED:
        total = tl.load(totals + row)
        top_k = tl.load(limits + row * 2)
        top_p = tl.load(limits + row * 2 + 1)
    return top, total, top_k, top_p


@triton.jit
def _left(logits, row, at, vocab, top, total, heat, top_k, top_p, share):
    """The masses of tokens after all filters."""
    below, key = keys_of(look(logits, row, at, vocab), top, heat)
    chance, mass = masses_of(below, key, total, top_k)
    return tl.where((key <= top_p) & (chance >= share / total), mass, 0)


@triton.jit
def _weigh(
    masses, limits, totals, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr, TURN: tl.constexpr,
    FILTERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute the mass of each chunk after all filters."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    chunk = tl.program_id(1)
    heat = heat_of(columns, row, rows)
    share = setting(columns, row, rows, MIN_P).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    top, total, top_k, top_p = _known(limits, totals, tops, sums, row, heat, CHUNKS, PADDED, FILTERED)
    mass = tl.zeros([TURN], tl.int64)
    for turn in range(0, CHUNK, TURN):
        at = chunk * CHUNK + turn + tl.arange(0, TURN)
        mass += _left(logits, row, at, vocab, top, total, heat, top_k, top_p, share)
    tl.store(masses + row * CHUNKS + chunk, tl.sum(mass, 0))


@triton.jit
def _pick(
    out, last_ids, slots, masses, places, limits, totals, tops, sums, logits, columns, vocab,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr,
    FILTERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Find the first token, by id, whose cumulative mass exceeds the uniform's share."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0)
    heat = heat_of(columns, row, rows)
    share = setting(columns, row, rows, MIN_P).to(tl.float32)
    slot = tl.load(slots + row)
    if PDL:
        tl.extra.cuda.gdc_wait()
    top, total, top_k, top_p = _known(limits, totals, tops, sums, row, heat, CHUNKS, PADDED, FILTERED)
    sound = (tl.abs(top) < float("inf")) & (total == total)
    token = tl.full([], 0, tl.int32)
    chunk = tl.arange(0, PADDED)
    if setting(columns, row, rows, TEMPERATURE) == 0.0:
        high = tl.load(tops + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
        place = tl.load(places + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=EVERY)
        token = tl.min(tl.where(high == top, place, EVERY), 0)
    else:
        mass = tl.load(masses + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
        all_of_it = tl.sum(mass, 0)
        target = (setting(columns, row, rows, UNIFORM) * all_of_it.to(tl.float64)).to(tl.int64)
        target = tl.minimum(target, all_of_it - 1)
        upto = tl.cumsum(mass, 0)
        one = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), CHUNKS - 1)
        target -= tl.sum(tl.where(chunk < one, mass, 0), 0)
        at = one * CHUNK + tl.arange(0, CHUNK)
        mass = _left(logits, row, at, vocab, top, total, heat, top_k, top_p, share)
        token = one * CHUNK + tl.sum((tl.cumsum(mass, 0) <= target).to(tl.int32), 0)
        sound = sound & (all_of_it > 0)
    token = tl.where(sound, token, 0).to(tl.int64)
    tl.store(last_ids + slot, token)
    tl.store(out + row, tl.where(sound, token, -1))


def sample(
    out: Tensor,
    last_ids: Tensor,
    logits: Tensor,
    columns: Tensor,
    slots: Tensor,
    *,
    filtered: bool,
    pdl: bool = False,
    room: int = ROOM,
) -> None:
    """Sample a token for each row of [rows, vocab] logits into `out`, and into `last_ids` at the row's slot.

    `columns` [settings, rows] float64 as in RowsView. Without `filtered`, no row may use top-k or top-p; with
    it, `room` is the number of a row's top tokens that fit in memory. A row without finite numbers gets -1 in
    `out`, and 0 in `last_ids`.
    """
    rows, vocab = logits.shape
    chunk = 2 * TURN if rows <= FEW else 8 * TURN
    chunks = triton.cdiv(vocab, chunk)
    grid = (rows, chunks)
    cut = {"CHUNKS": chunks, "CHUNK": chunk, "FILTERED": filtered, "PDL": pdl, **launch(pdl)}
    padded = power(chunks)

    def made(dtype: torch.dtype, count: int) -> Tensor:
        return torch.empty(rows, count, dtype=dtype, device=logits.device)

    tops, sums, places = (made(kind, chunks) for kind in (torch.float32, torch.float32, torch.int32))
    highs = made(torch.float32, chunks * chunk // GROUP.value if filtered else 0)
    masses = made(torch.int64, chunks)
    _scan[grid](tops, places, sums, highs, logits, columns, vocab, TURN=TURN, num_warps=4, **cut)
    limits, totals = masses, sums  # not read without filters
    if filtered:
        limits, totals = limits_of(logits, columns, (tops, sums), highs, chunk, room, pdl=pdl)
    _weigh[grid](
        masses, limits, totals, tops, sums, logits, columns, vocab,
        PADDED=padded, TURN=TURN, num_warps=4, **cut,
    )  # fmt: skip
    _pick[(rows,)](
        out, last_ids, slots, masses, places, limits, totals, tops, sums, logits, columns, vocab,
        PADDED=padded, num_warps=8, **cut,
    )  # fmt: skip
