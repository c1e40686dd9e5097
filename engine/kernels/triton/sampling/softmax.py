"""A token's key and mass, as the sampling kernels use them.

A token's mass is a whole number, as in engine/sampling/sampler.py, so sums over parts of a row are exact in
any order. Its key is its distance from the highest score, as the bits of (top - score) / temperature: they
sort like the scores, in descending order.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

from engine.sampling.rows import COLUMNS

TEMPERATURE, TOP_K, TOP_P, MIN_P, UNIFORM = (
    tl.constexpr(COLUMNS.index(name)) for name in ("temperature", "top_k", "top_p", "min_p", "uniform")
)
MASS = tl.constexpr(2.0**48)  # of a whole row, as in the definition
EVERY = tl.constexpr(2**31 - 1)  # the limit of a row without a filter: the largest key


@triton.jit
def setting(columns, row, rows, COLUMN: tl.constexpr):
    return tl.load(columns + COLUMN * rows + row)


@triton.jit
def heat_of(columns, row, rows):
    """The temperature, or 1 if the row is greedy."""
    heat = setting(columns, row, rows, TEMPERATURE).to(tl.float32)
    return tl.where(heat == 0.0, 1.0, heat)


@triton.jit
def look(logits, row, at, vocab):
    return tl.load(logits + row * vocab + at, mask=at < vocab, other=float("-inf")).to(tl.float32)


@triton.jit
def whole(tops, sums, row, heat, CHUNKS: tl.constexpr, PADDED: tl.constexpr):
    """The row's highest score, and the sum of exponentials relative to it."""
    chunk = tl.arange(0, PADDED)
    high = tl.load(tops + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=float("-inf"))
    part = tl.load(sums + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=0.0)
    top = tl.max(high, 0)
    return top, tl.sum(tl.where(high > float("-inf"), part * tl.exp((high - top) / heat), part), 0)


@triton.jit
def keys_of(scores, top, heat):
    """The distance from the top, divided by the temperature; and the same as an integer, for the filters."""
    below = _divided(scores - top, heat)
    return below, tl.abs(below).to(tl.int32, bitcast=True)


@triton.jit
def masses_of(below, key, total, top_k):
    """Probabilities among the tokens that top-k keeps, and these as whole numbers."""
    chance = tl.where(key <= top_k, tl.exp(below) * (1.0 / total), 0.0)
    return chance, (chance * MASS).to(tl.int64)


@triton.jit
def _divided(number, by):
    """Like tl.div_rn by one divisor, which is inverted once: an estimate and two corrections."""
    inverse = tl.div_rn(1.0, by)
    guess = number * inverse
    better = tl.fma(tl.fma(-guess, by, number), inverse, guess)
    best = tl.fma(tl.fma(-better, by, number), inverse, better)
    return tl.where(guess == float("-inf"), guess, best)
