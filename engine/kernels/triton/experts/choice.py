"""The choice of a row's experts within a program, one after another.

Scores are in pieces of 32, each of which every warp holds whole, and are compared as integers. So a maximum
is one instruction, and warps do not wait for each other. Comparing all pairs takes several times as many
instructions.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl

TAKEN = tl.constexpr(-(2**31))  # below any score


@triton.jit
def scored(
    logits, choice_bias,
    EXPERTS: tl.constexpr, PIECES: tl.constexpr, SIGMOID: tl.constexpr, CHOICE_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """What experts are chosen by, as integers in the same order; the maximum and the sum of a softmax.

    `EARLY`: before the kernel waits, so past the L1 cache.
    """
    lane = tl.arange(0, 32)
    raw = ()
    top = tl.full([32], float("-inf"), tl.float32)
    for piece in tl.static_range(PIECES):
        at = piece * 32 + lane
        logit = tl.load(logits + at, mask=at < EXPERTS, other=float("-inf"), volatile=EARLY)
        raw += (logit,)
        top = tl.maximum(top, logit)
    highest = 0.0
    total = 1.0
    if not SIGMOID:
        highest = tl.max(top, 0)
        powers = tl.zeros([32], tl.float32)
        for piece in tl.static_range(PIECES):
            powers += tl.exp(raw[piece] - highest)
        total = tl.sum(powers, 0)
    keys = ()
    for piece in tl.static_range(PIECES):
        at = piece * 32 + lane
        choice = _by(raw[piece], highest, total, SIGMOID, CHOICE_BIAS)
        if CHOICE_BIAS:
            choice += tl.load(choice_bias + at, mask=at < EXPERTS, other=0.0)
        bits = choice.to(tl.int32, bitcast=True)
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        keys += (tl.where(at < EXPERTS, key, TAKEN),)
    return keys, highest, total


@triton.jit
def score(logit, highest, total, SIGMOID: tl.constexpr):
    if SIGMOID:
        found = tl.sigmoid(logit)
    else:
        found = tl.exp(logit - highest) / total
    return found


@triton.jit
def _by(logit, highest, total, SIGMOID: tl.constexpr, CHOICE_BIAS: tl.constexpr):
    """What an expert is chosen by, before a bias: a softmax keeps the order of its logits."""
    found = logit
    if SIGMOID or CHOICE_BIAS:
        found = score(logit, highest, total, SIGMOID)
    return found


@triton.jit
def taken(keys, PIECES: tl.constexpr):
    """The first expert with the highest key, and the keys without its own."""
    lane = tl.arange(0, 32)
    best = keys[0]
    for piece in tl.static_range(1, PIECES):
        best = tl.maximum(best, keys[piece])
    highest = tl.max(best, 0)
    at = tl.where(keys[0] == highest, lane, PIECES * 32)
    for piece in tl.static_range(1, PIECES):
        at = tl.minimum(at, tl.where(keys[piece] == highest, piece * 32 + lane, PIECES * 32))
    expert = tl.min(at, 0)
    left = ()
    for piece in tl.static_range(PIECES):
        left += (tl.where(piece * 32 + lane == expert, TAKEN, keys[piece]),)
    return expert, left
