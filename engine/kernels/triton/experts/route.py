"""The choice of experts: the router's product, and for each row the experts with the highest scores.

The product is in float32 and split over its inputs; the second kernel adds the parts up, in a fixed order.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up

COLUMNS = 16  # experts of a program
TURN = 64  # inputs of an iteration
ENOUGH = 128  # programs
MOST_EXPERTS = 1024


@dataclass(frozen=True, slots=True)
class Routing:
    """How scores become a choice and its weights."""

    chosen: int
    sigmoid: bool = False  # else scores are the softmax over all experts
    groups: int = 1  # a row chooses from some groups of experts
    chosen_groups: int = 1
    best: int = 1  # a group's score is the sum of this many of its experts', one or two
    normalized: bool = False
    scaling: float = 1.0


@triton.jit(do_not_specialize=["rows"])
def _router_logits(
    out, x, weight, rows,
    EXPERTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TURN: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    expert = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    SHARE: tl.constexpr = (INPUTS + TURN * PARTS - 1) // (TURN * PARTS) * TURN
    there = (expert < EXPERTS)[:, None]
    known = (row < rows)[None, :]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for begin in tl.range(0, SHARE, TURN, num_stages=3):
        at = part * SHARE + begin + tl.arange(0, TURN)
        fits = at < INPUTS
        w = tl.load(weight + expert[:, None] * INPUTS + at[None, :], mask=there & fits[None, :], other=0.0)
        of_x = x + row.to(tl.int64)[None, :] * INPUTS + at[:, None]
        v = tl.load(of_x, mask=known & fits[:, None], other=0.0)
        total = tl.dot(w, v.to(tl.float32), total, input_precision="tf32x3")
    to = (part * rows + row).to(tl.int64)[None, :] * EXPERTS + expert[:, None]
    tl.store(out + to, total, mask=there & known)


def router_logits(x: Tensor, weight: Tensor, *, pdl: bool = False) -> Tensor:
    """[rows, inputs] with a weight in float32 -> [parts, rows, experts] in float32. `pdl` as in Tile."""
    (rows, inputs), experts = x.shape, len(weight)
    tall = 16 if rows <= 64 else 64
    grid = triton.cdiv(experts, COLUMNS), triton.cdiv(rows, tall)
    parts = 1
    while grid[0] * grid[1] * parts < ENOUGH and parts < 16 and parts * 2 * TURN <= inputs:
        parts *= 2
    out = torch.empty(parts, rows, experts, dtype=torch.float32, device=x.device)
    _router_logits[(*grid, parts)](
        out, x, weight, rows,
        EXPERTS=experts, INPUTS=inputs, ROWS=tall, COLUMNS=COLUMNS, TURN=TURN, PARTS=parts, PDL=pdl,
        num_warps=1 if tall == 16 else 2, **launch(pdl),
    )  # fmt: skip
    return out


@triton.jit
def _route(
    weights, ids, parts, logit_bias, choice_bias, counts, places, part_stride,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, CHOSEN: tl.constexpr,
    SLOTS: tl.constexpr, SIGMOID: tl.constexpr, LOGIT_BIAS: tl.constexpr, CHOICE_BIAS: tl.constexpr,
    COUNTS: tl.constexpr, PLACES: tl.constexpr,
    GROUPS: tl.constexpr, CHOSEN_GROUPS: tl.constexpr, GROUP_SLOTS: tl.constexpr, BEST: tl.constexpr,
    NORMALIZED: tl.constexpr, SCALING: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED)
    there = expert < EXPERTS
    logit = add_up(parts, row * EXPERTS + expert, there, part_stride, PARTS)
    if LOGIT_BIAS:
        logit += tl.load(logit_bias + expert, mask=there, other=0.0)
    if SIGMOID:
        score = tl.sigmoid(logit)
    else:
        logit = tl.where(there, logit, float("-inf"))
        power = tl.exp(logit - tl.max(logit, 0))
        score = power / tl.sum(power, 0)
    choice = score
    if CHOICE_BIAS:
        choice += tl.load(choice_bias + expert, mask=there, other=0.0)
    choice = tl.where(there, choice, float("-inf"))
    if GROUPS > 1:
        SIZE: tl.constexpr = EXPERTS // GROUPS
        group = tl.arange(0, GROUP_SLOTS)
        by_group = tl.full([GROUP_SLOTS], float("-inf"), tl.float32)
        for nth in tl.static_range(GROUPS):
            own = tl.where(expert // SIZE == nth, choice, float("-inf"))
            high, first = tl.max(own, 0, return_indices=True)
            if BEST == 2:
                high += tl.max(tl.where(expert == first, float("-inf"), own), 0)
            by_group = tl.where(group == nth, high, by_group)
        open = tl.zeros([PADDED], tl.int32)
        for _ in tl.static_range(CHOSEN_GROUPS):
            _, first = tl.max(by_group, 0, return_indices=True)
            open = tl.where(expert // SIZE == first, 1, open)
            by_group = tl.where(group == first, float("-inf"), by_group)
        choice = tl.where(open == 1, choice, float("-inf"))

    slot = tl.arange(0, SLOTS)
    found = tl.zeros([SLOTS], tl.int32)
    kept = tl.zeros([SLOTS], tl.float32)
    for nth in tl.static_range(CHOSEN):
        high, first = tl.max(choice, 0, return_indices=True)
        first = tl.minimum(first, EXPERTS - 1)  # scores may be NaN
        if CHOICE_BIAS:
            high = tl.sum(tl.where(expert == first, score, 0.0), 0)
        found = tl.where(slot == nth, first, found)
        kept = tl.where(slot == nth, high, kept)
        choice = tl.where(expert == first, float("-inf"), choice)
    if NORMALIZED:
        kept = kept / (tl.sum(kept, 0) + 1e-20)
    tl.store(ids + row * CHOSEN + slot, found, mask=slot < CHOSEN)
    tl.store(weights + row * CHOSEN + slot, kept * SCALING, mask=slot < CHOSEN)
    if COUNTS:
        counted = slot < CHOSEN
        if PLACES:
            counted &= tl.load(places + row) >= 0
        tl.atomic_add(counts + found, tl.full([SLOTS], 1, tl.int64), mask=counted, sem="relaxed")


def route(
    parts: Tensor,
    how: Routing,
    logit_bias: Tensor | None = None,
    choice_bias: Tensor | None = None,
    counts: Tensor | None = None,
    places: Tensor | None = None,
    *,
    pdl: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return each row's weights in float32 and experts in int32, [rows, chosen] each.

    `parts` as router_logits returns them. `choice_bias` takes part in the choice, but not in the weights.
    `counts`: [experts] in int64, to which each expert's rows are added, except rows whose place is negative.
    """
    count, rows, experts = parts.shape
    weights = torch.empty(rows, how.chosen, dtype=torch.float32, device=parts.device)
    ids = torch.empty(rows, how.chosen, dtype=torch.int32, device=parts.device)
    _route[(rows,)](
        weights, ids, parts, logit_bias, choice_bias, counts, places, parts.stride(0),
        EXPERTS=experts, PADDED=power(experts), PARTS=count, CHOSEN=how.chosen, SLOTS=power(how.chosen),
        SIGMOID=how.sigmoid, LOGIT_BIAS=logit_bias is not None, CHOICE_BIAS=choice_bias is not None,
        COUNTS=counts is not None, PLACES=counts is not None and places is not None,
        GROUPS=how.groups, CHOSEN_GROUPS=how.chosen_groups, GROUP_SLOTS=power(how.groups), BEST=how.best,
        NORMALIZED=how.normalized, SCALING=how.scaling, PDL=pdl, num_warps=1, **launch(pdl),
    )  # fmt: skip
    return weights, ids
