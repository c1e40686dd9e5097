"""What the kernels that draw know of a token: how far below the likeliest it is, and what it is drawn with.

What a token may be drawn with is a whole number, as in engine/sampling/sampler.py, so sums over parts of a
row are exact in any order. Its key is how far below the top it is, the bits of (top - score) / temperature:
they order as scores do, the likeliest first.
"""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import triton
import triton.language as tl

from engine.sampling.rows import COLUMNS

TEMPERATURE, TOP_K, TOP_P, MIN_P, UNIFORM = (
    tl.constexpr(COLUMNS.index(name)) for name in ("temperature", "top_k", "top_p", "min_p", "uniform")
)
MASS = tl.constexpr(2.0**48)  # of a whole row, as in the definition
EVERY = tl.constexpr(2**31 - 1)  # the limit of a row without a filter: no key lies beyond it


@triton.jit
def setting(columns, row, rows, COLUMN: tl.constexpr):
    return tl.load(columns + COLUMN * rows + row)


@triton.jit
def heat_of(columns, row, rows):
    """The temperature, 1 where the row is greedy."""
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
    """How far below the top, divided by the temperature; and the same as a whole number, for filters."""
    below = _divided(scores - top, heat)
    return below, tl.abs(below).to(tl.int32, bitcast=True)


@triton.jit
def masses_of(below, key, total, top_k):
    """Chances among the tokens that top-k has kept, and those as whole numbers."""
    chance = tl.where(key <= top_k, tl.exp(below) * (1.0 / total), 0.0)
    return chance, (chance * MASS).to(tl.int64)


@triton.jit
def _divided(number, by):
    """tl.div_rn where one number divides many, for which it is inverted once: a guess, and twice its rest."""
    inverse = tl.div_rn(1.0, by)
    guess = number * inverse
    better = tl.fma(tl.fma(-guess, by, number), inverse, guess)
    best = tl.fma(tl.fma(-better, by, number), inverse, better)
    return tl.where(guess == float("-inf"), guess, best)
