"""One row of a mixture of experts in three kernels, without one for the choice of experts.

The first norms the row and multiplies it with the router. The other two choose experts themselves, each
program again (choice.py). The product of gate and up may begin with an expert that serves all rows, behind
the chosen ones, and that of `down` adds all up, in order, to the residual stream.

The kernel of `down` reads the scores and the weights of its first output before it waits. The scores are two
kernels old, and the kernel between lets it start only after its own wait for them.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import switches
from engine.kernels.triton.experts.choice import score, scored, taken
from engine.kernels.triton.experts.gemm import Gate, activated
from engine.kernels.triton.experts.route import Routing
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import norm_scaled
from engine.kernels.triton.prefetch import bulky, prefetch_bytes

MOST_RANKED = 128  # experts from which a program chooses
MOST_HELD = 16384  # numbers of weights that a program holds at once
# A program of gate and up reads about this many bytes of weights, or fewer if that leaves too few programs.
BYTES, PROGRAMS = 24576, 3000
COPIES = 32  # of the scores, which thousands of warps read at once: a line of the L2 cache serves one by one


@dataclass(frozen=True, slots=True)
class RowTiling:
    """How a product is split into programs."""

    turns: int  # per program, of one output each
    warps: int
    stages: int  # turns whose weights are in flight


@dataclass(frozen=True, slots=True)
class Scores:
    """A row's logits, and how experts are chosen by them."""

    logits: Tensor  # [copies, experts] in float32, all the same
    how: Routing
    choice_bias: Tensor | None = None  # takes part in the choice, but not in the weights

    def constants(self) -> dict[str, int | float | bool]:
        (copies, experts), how = self.logits.shape, self.how
        return {
            "COPIES": copies, "EXPERTS": experts, "PIECES": triton.cdiv(experts, 32), "CHOSEN": how.chosen,
            "SIGMOID": how.sigmoid, "CHOICE_BIAS": self.choice_bias is not None,
            "NORMALIZED": how.normalized, "SCALING": how.scaling,
        }  # fmt: skip


@triton.jit
def _norm_router(
    logits, normed, x, norm_weight, weight, bias, eps,
    INPUTS: tl.constexpr, PADDED: tl.constexpr, COPIES: tl.constexpr, BIASED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.program_id(0)
    at = tl.arange(0, PADDED)
    there = at < INPUTS
    w = tl.load(weight + expert * INPUTS + at, mask=there, other=0.0)
    scale = tl.load(norm_weight + at, mask=there, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    even = value * tl.rsqrt(tl.sum(value * value, 0) / INPUTS + eps)
    result = norm_scaled(even, scale, norm_weight, normed.dtype.element_ty)
    logit = tl.sum(w * result.to(tl.float32), 0)
    if BIASED:
        logit += tl.load(bias + expert)
    tl.store(logits + tl.arange(0, COPIES) * tl.num_programs(0) + expert, logit)
    if expert == 0:
        tl.store(normed + at, result, mask=there)


def norm_router(
    x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None, *, pdl: bool
) -> tuple[Tensor, Tensor]:
    """Return copies of the logits [copies, experts], and the normed row [1, inputs].

    `weight` and `bias` in float32.
    """
    inputs, experts = x.shape[1], len(weight)
    logits = torch.empty(COPIES, experts, dtype=torch.float32, device=x.device)
    normed = torch.empty_like(x)
    _norm_router[(experts,)](
        logits, normed, x, norm_weight, weight, bias, eps,
        INPUTS=inputs, PADDED=power(inputs), COPIES=COPIES, BIASED=bias is not None, PDL=pdl, num_warps=4,
        **launch(pdl),
    )  # fmt: skip
    return logits, normed


@triton.jit
def _chunks(line, there, WIDTH: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """A line of numbers, or, given pointers [slots, 1], a line for each slot."""
    found = ()
    for nth in tl.static_range(CHUNKS):
        at = nth * CHUNK + tl.arange(0, CHUNK)
        found += (tl.load(line + at, mask=there & (at < WIDTH), other=0.0).to(tl.float32),)
    return found


@triton.jit
def _summed(left, right, CHUNKS: tl.constexpr):
    """The sum of all products: added up in one go, as warps wait for each other there."""
    total = left[0] * right[0]
    for nth in tl.static_range(1, CHUNKS):
        total += left[nth] * right[nth]
    return tl.sum(total)


@triton.jit
def _prefetch_shared(
    shared, slot,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, SHARED: tl.constexpr, TURNS: tl.constexpr, UP: tl.constexpr,
):  # fmt: skip
    """Prefetch this program's share of the shared expert, which needs no routing."""
    first = slot * OUTPUTS + tl.program_id(0) * TURNS
    end = tl.minimum(tl.minimum(first + TURNS, SHARED), (slot + 1) * OUTPUTS)
    if (slot >= 0) & (first < end):
        ROW: tl.constexpr = INPUTS * (shared.dtype.element_ty.primitive_bitwidth // 8)
        of = shared + first.to(tl.int64) * INPUTS
        prefetch_bytes(of, (end - first) * ROW)
        if UP > 0:
            prefetch_bytes(of + SHARED * INPUTS, (end - first) * ROW)


@triton.jit
def _routed_gate_up(
    out, x, weight, bias, shared, logits, choice_bias, counts, places,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    SHARED: tl.constexpr, TURNS: tl.constexpr, STEP: tl.constexpr, UP: tl.constexpr, ALPHA: tl.constexpr,
    LIMIT: tl.constexpr, BIASED: tl.constexpr, COUNTS: tl.constexpr, PLACES: tl.constexpr,
    COPIES: tl.constexpr, EXPERTS: tl.constexpr, PIECES: tl.constexpr, CHOSEN: tl.constexpr,
    SIGMOID: tl.constexpr, CHOICE_BIAS: tl.constexpr, NORMALIZED: tl.constexpr, SCALING: tl.constexpr,
    STAGES: tl.constexpr, FETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # The last expert, whose choice takes longest, and what serves all rows begin first.
    slot = tl.num_programs(1) - 1 - tl.program_id(1)
    if FETCH:
        _prefetch_shared(shared, slot - CHOSEN, OUTPUTS, INPUTS, SHARED, TURNS, UP)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()  # after the wait: the next kernel reads the scores early
    dtype = out.dtype.element_ty
    ALL: tl.constexpr = 2 * OUTPUTS if UP > 0 else OUTPUTS
    if slot < CHOSEN:
        own_logits = logits + tl.program_id(0) % COPIES * EXPERTS
        keys, _, _ = scored(own_logits, choice_bias, EXPERTS, PIECES, SIGMOID, CHOICE_BIAS, False)
        expert = slot
        for _ in range(slot + 1):
            expert, keys = taken(keys, PIECES)
        begin = 0
        count = OUTPUTS
        own = weight + expert.to(tl.int64) * (ALL * INPUTS)
        up = UP * INPUTS
        if COUNTS:
            counted = tl.program_id(0) == 0
            if PLACES:
                counted &= tl.load(places) >= 0
            tl.atomic_add(counts + expert, tl.full([], 1, tl.int64), mask=counted, sem="relaxed")
    else:  # an expert for all rows, in slots of as many outputs
        expert = 0
        begin = (slot - CHOSEN) * OUTPUTS
        count = SHARED
        own = shared
        up = SHARED * INPUTS
    value = _chunks(x, slot >= 0, INPUTS, CHUNK, CHUNKS)
    for turn in tl.range(0, TURNS, num_stages=STAGES):
        output = begin + tl.program_id(0) * TURNS + turn
        there = (output < count) & (output < begin + OUTPUTS)
        if BIASED:  # read before the sums, which take as long
            of = bias + expert * ALL + output * STEP
            chosen = there & (slot < CHOSEN)
            more = tl.load(of, mask=chosen, other=0.0).to(tl.float32)
            if UP > 0:
                more_up = tl.load(of + UP, mask=chosen, other=0.0).to(tl.float32)
        gates = own + output.to(tl.int64) * (STEP * INPUTS)
        gate = _summed(_chunks(gates, there, INPUTS, CHUNK, CHUNKS), value, CHUNKS)
        other = gate
        if UP > 0:
            other = _summed(_chunks(gates + up, there, INPUTS, CHUNK, CHUNKS), value, CHUNKS)
        if BIASED:
            gate += more
            if UP > 0:
                other += more_up
        act = activated(gate.to(dtype), other.to(dtype), ALPHA, LIMIT)
        tl.store(out + tl.minimum(slot, CHOSEN) * OUTPUTS + output, act, mask=there)


def routed_gate_up(
    x: Tensor,
    weight: Tensor,
    scores: Scores,
    gate: Gate,
    *,
    bias: Tensor | None = None,
    shared: Tensor | None = None,
    counts: Tensor | None = None,
    places: Tensor | None = None,
    pdl: bool = False,
    cut: RowTiling | None = None,
) -> Tensor:
    """[1, inputs] -> [chosen * width + width of `shared`].

    `weight` [experts, outputs, inputs], `shared` [outputs, inputs]; `counts` and `places` as in `route`.
    """
    width, inputs, chosen = gate.width(weight.shape[1]), x.shape[1], scores.how.chosen
    beside = 0 if shared is None else gate.width(len(shared))
    slots = chosen + triton.cdiv(beside, width)
    turns = (cut := cut or gate_up_tiling(width * slots, inputs)).turns
    out = torch.empty(chosen * width + beside, dtype=x.dtype, device=x.device)
    chunk, chunks = pieces(inputs)
    early = pdl and switches.FETCH_SHARED and shared is not None and bulky(shared)
    _routed_gate_up[(triton.cdiv(width, turns), slots)](
        out, x, weight, bias, weight if shared is None else shared, scores.logits, scores.choice_bias,
        counts, places,
        OUTPUTS=width, INPUTS=inputs, CHUNK=chunk, CHUNKS=chunks, SHARED=beside, TURNS=turns,
        **gate.constants(width), BIASED=bias is not None, COUNTS=counts is not None,
        PLACES=counts is not None and places is not None, **scores.constants(), STAGES=cut.stages,
        FETCH=early, PDL=pdl, num_warps=cut.warps, **launch(pdl),
    )  # fmt: skip
    return out


@triton.jit
def _before(residual, bias, share, of_bias, used, output, there, BIASED: tl.constexpr):
    """What is added to an output, and to its sum: read before the sum, which takes as long."""
    before = tl.load(residual + output, mask=there, other=0.0).to(tl.float32)
    total = 0.0
    if BIASED:
        biases = tl.load(bias + of_bias + output, mask=used & there, other=0.0).to(tl.float32)
        total = tl.sum(biases * share, 0)
    return before, total


@triton.jit
def _store_sum(out, before, total, output, there):
    dtype = out.dtype.element_ty
    tl.store(out + output, (before + total.to(dtype).to(tl.float32)).to(dtype), mask=there)


@triton.jit
def _routed_down(
    out, act, weight, bias, shared, logits, choice_bias, residual,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    SHARED: tl.constexpr, SHARED_PAD: tl.constexpr, TURNS: tl.constexpr, SLOTS: tl.constexpr,
    BIASED: tl.constexpr, COPIES: tl.constexpr, EXPERTS: tl.constexpr, PIECES: tl.constexpr,
    CHOSEN: tl.constexpr, SIGMOID: tl.constexpr, CHOICE_BIAS: tl.constexpr, NORMALIZED: tl.constexpr,
    SCALING: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.arange(0, SLOTS)
    used = slot < CHOSEN
    logits += tl.program_id(0) % COPIES * EXPERTS
    keys, highest, total = scored(logits, choice_bias, EXPERTS, PIECES, SIGMOID, CHOICE_BIAS, True)
    expert = tl.zeros([SLOTS], tl.int32)
    for nth in tl.static_range(CHOSEN):
        found, keys = taken(keys, PIECES)
        expert = tl.where(slot == nth, found, expert)
    logit = tl.load(logits + expert, mask=used, other=float("-inf"), volatile=True)
    share = tl.where(used, score(logit, highest, total, SIGMOID), 0.0)
    if NORMALIZED:
        share = share / (tl.sum(share, 0) + 1e-20)
    share *= SCALING
    of_slots = expert.to(tl.int64) * (OUTPUTS * INPUTS)
    begin = tl.program_id(0) * TURNS
    lines = weight + of_slots[:, None]
    some = used[:, None]
    w = _chunks(lines + begin.to(tl.int64) * INPUTS, some, INPUTS, CHUNK, CHUNKS)
    at = tl.arange(0, SHARED_PAD)
    if SHARED > 0:
        w_shared = tl.load(shared + begin.to(tl.int64) * SHARED + at, mask=at < SHARED, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()

    acts = _chunks(act + slot[:, None] * INPUTS, some, INPUTS, CHUNK, CHUNKS)
    value = ()
    for nth in tl.static_range(CHUNKS):
        value += (acts[nth] * share[:, None],)
    of_bias = expert * OUTPUTS
    there = begin < OUTPUTS
    before, total = _before(residual, bias, share, of_bias, used, begin, there, BIASED)
    total += _summed(w, value, CHUNKS)
    if SHARED > 0:
        value_shared = tl.load(act + CHOSEN * INPUTS + at, mask=at < SHARED, other=0.0).to(tl.float32)
        total += tl.sum(w_shared.to(tl.float32) * value_shared, 0)
    _store_sum(out, before, total, begin, there)
    for turn in tl.range(1, TURNS, num_stages=STAGES):
        output = begin + turn
        there = output < OUTPUTS
        before, total = _before(residual, bias, share, of_bias, used, output, there, BIASED)
        of_output = lines + output.to(tl.int64) * INPUTS
        total += _summed(_chunks(of_output, some & there, INPUTS, CHUNK, CHUNKS), value, CHUNKS)
        if SHARED > 0:
            of_shared = shared + output.to(tl.int64) * SHARED
            more = tl.load(of_shared + at, mask=there & (at < SHARED), other=0.0).to(tl.float32)
            total += tl.sum(more * value_shared, 0)
        _store_sum(out, before, total, output, there)


def routed_down(
    act: Tensor,
    weight: Tensor,
    scores: Scores,
    residual: Tensor,
    *,
    bias: Tensor | None = None,
    shared: Tensor | None = None,
    pdl: bool = False,
    cut: RowTiling | None = None,
) -> Tensor:
    """What routed_gate_up returns -> [1, outputs], weighed, summed, and added to `residual` [1, outputs].

    `weight` [experts, outputs, inputs], `shared` [outputs, inputs of its own].
    """
    outputs, inputs = weight.shape[1:]
    beside = 0 if shared is None else shared.shape[1]
    cut = cut or down_tiling(weight, scores.how.chosen, beside)
    out, (chunk, chunks) = torch.empty_like(residual), pieces(inputs)
    _routed_down[(triton.cdiv(outputs, cut.turns),)](
        out, act, weight, bias, shared, scores.logits, scores.choice_bias, residual,
        OUTPUTS=outputs, INPUTS=inputs, CHUNK=chunk, CHUNKS=chunks, SHARED=beside,
        SHARED_PAD=power(beside or 1), TURNS=cut.turns, SLOTS=power(scores.how.chosen),
        BIASED=bias is not None, **scores.constants(), STAGES=cut.stages, PDL=pdl, num_warps=cut.warps,
        **launch(pdl),
    )  # fmt: skip
    return out


def takes_row(gate_up: Tensor, down: Tensor, how: Routing, beside: int = 0) -> bool:
    """Whether these kernels compute one row. `beside`: the width of an expert for all rows."""
    held = (
        power(how.chosen) * prod(pieces(down.shape[2])),
        2 * prod(pieces(gate_up.shape[2])),
        power(beside),
    )
    return how.groups == 1 and len(down) <= MOST_RANKED and max(held) <= MOST_HELD


def pieces(width: int) -> tuple[int, int]:
    """Cut a row into one power of two, or three equal ones if that is shorter: their length and number."""
    whole = power(width)
    return (whole // 4, 3) if 4 * width <= 3 * whole else (whole, 1)


def gate_up_tiling(outputs: int, inputs: int) -> RowTiling:
    """`outputs`: of all chosen experts. A single warp waits for no other, and has room for 2,048 inputs."""
    warps = power(triton.cdiv(inputs, 2048))
    turns = max(1, min(round(BYTES / (4 * inputs)), outputs // PROGRAMS))
    return RowTiling(turns, warps, stages=3 if warps == 1 else 2)


def down_tiling(weight: Tensor, chosen: int, beside: int) -> RowTiling:
    outputs, inputs = weight.shape[1:]
    held = power(chosen) * prod(pieces(inputs)) + (power(beside) if beside else 0)
    wide = held > 8192
    turns = max(1, round(outputs / (264 if wide else 528)))
    stages = 3 if wide and held * weight.itemsize <= 2**15 else 2
    return RowTiling(turns, warps=8 if wide else 4, stages=stages)
