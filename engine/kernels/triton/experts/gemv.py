"""One row with the weights of its experts, by multiplying and summing, as gemv in skinny_gemm.py.

The weight has 16 bits, or 8 as integers offset by 128 with a scale per output. A program of the last product
has some outputs of all chosen experts: it adds them up in order, and to the residual stream.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.experts.gemm import Gate, activated
from engine.kernels.triton.gemm.skinny_gemm import ProductTiling, as_float
from engine.kernels.triton.launch import launch, power


@triton.jit
def _weights(weight, row, at, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, STEP: tl.constexpr):
    mask = (row < OUTPUTS)[:, None] & (at < INPUTS)[None, :]
    return tl.load(weight + (row * (STEP * INPUTS))[:, None] + at[None, :], mask=mask, other=0)


@triton.jit
def _experts_gate_up_gemv(
    out, x, weight, weight_scale, bias, ids,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr, STEP: tl.constexpr,
    UP: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    slot = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < OUTPUTS
    expert = tl.load(ids + slot)
    ALL: tl.constexpr = 2 * OUTPUTS if UP > 0 else OUTPUTS
    own = weight + expert.to(tl.int64) * (ALL * INPUTS)
    total = tl.zeros([ROWS, TURN], tl.float32)
    total_up = tl.zeros([ROWS, TURN], tl.float32)
    for begin in tl.range(0, INPUTS, TURN, num_stages=STAGES):
        at = begin + tl.arange(0, TURN)
        gates = _weights(own, row, at, OUTPUTS, INPUTS, STEP)
        value = tl.load(x + at, mask=at < INPUTS, other=0.0).to(tl.float32)[None, :]
        total += as_float(gates) * value
        if UP > 0:
            ups = _weights(own + UP * INPUTS, row, at, OUTPUTS, INPUTS, STEP)
            total_up += as_float(ups) * value
    gate = tl.sum(total, 1)
    up = tl.sum(total_up, 1)
    of = expert * ALL + row * STEP
    if SCALED:
        gate *= tl.load(weight_scale + of, mask=there, other=0.0)
        if UP > 0:
            up *= tl.load(weight_scale + of + UP, mask=there, other=0.0)
    if BIASED:
        gate += tl.load(bias + of, mask=there, other=0.0).to(tl.float32)
        if UP > 0:
            up += tl.load(bias + of + UP, mask=there, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    tl.store(out + slot * OUTPUTS + row, activated(gate.to(dtype), up.to(dtype), ALPHA, LIMIT), mask=there)


def experts_gate_up_gemv(
    x: Tensor,
    weight: Tensor,
    ids: Tensor,
    gate: Gate,
    weight_scale: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    pdl: bool = False,
    cut: ProductTiling | None = None,
) -> Tensor:
    """[1, inputs] -> [chosen, width]. The weight and its scale as in experts_gemm; `ids` [1, chosen]."""
    outputs, inputs, chosen = gate.width(weight.shape[1]), x.shape[1], ids.shape[1]
    cut = cut or gate_up_gemv_tiling(weight)
    out = torch.empty(chosen, outputs, dtype=x.dtype, device=x.device)
    _experts_gate_up_gemv[(triton.cdiv(outputs, cut.outputs), chosen)](
        out, x, weight, weight_scale, bias, ids,
        OUTPUTS=outputs, INPUTS=inputs, ROWS=cut.outputs, TURN=cut.inputs, **gate.constants(outputs),
        SCALED=weight_scale is not None, BIASED=bias is not None, STAGES=cut.stages, PDL=pdl,
        num_warps=cut.warps, **launch(pdl),
    )  # fmt: skip
    return out


@triton.jit
def _experts_down_gemv(
    out, x, weight, weight_scale, bias, ids, slot_weights, residual,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr, CHOSEN: tl.constexpr,
    SCALED: tl.constexpr, BIASED: tl.constexpr, ADD: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < OUTPUTS
    TURNS: tl.constexpr = (INPUTS + TURN - 1) // TURN
    total = tl.zeros([ROWS, TURN], tl.float32)
    biases = tl.zeros([ROWS], tl.float32)
    for turn in tl.range(0, CHOSEN * TURNS, num_stages=STAGES):
        slot = turn // TURNS
        at = turn % TURNS * TURN + tl.arange(0, TURN)
        expert = tl.load(ids + slot)
        share = tl.load(slot_weights + slot)
        own = weight + expert.to(tl.int64) * (OUTPUTS * INPUTS)
        numbers = as_float(_weights(own, row, at, OUTPUTS, INPUTS, 1))
        value = tl.load(x + slot * INPUTS + at, mask=at < INPUTS, other=0.0).to(tl.float32) * share
        if SCALED:
            steps = tl.load(weight_scale + expert * OUTPUTS + row, mask=there, other=0.0)
            numbers *= steps[:, None]
        total += numbers * value[None, :]
        if BIASED:
            once = tl.where(turn % TURNS == 0, share, 0.0)
            biases += tl.load(bias + expert * OUTPUTS + row, mask=there, other=0.0).to(tl.float32) * once
    dtype = out.dtype.element_ty
    result = (tl.sum(total, 1) + biases).to(dtype)
    if ADD:
        before = tl.load(residual + row, mask=there, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(dtype)
    tl.store(out + row, result, mask=there)


def experts_down_gemv(
    x: Tensor,
    weight: Tensor,
    ids: Tensor,
    pair_weights: Tensor,
    weight_scale: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    pdl: bool = False,
    cut: ProductTiling | None = None,
) -> Tensor:
    """[chosen, inputs] -> [1, outputs], weighed by `pair_weights` [1, chosen] and summed."""
    outputs, inputs = weight.shape[1], x.shape[1]
    cut = cut or down_gemv_tiling(weight)
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    _experts_down_gemv[(triton.cdiv(outputs, cut.outputs),)](
        out, x, weight, weight_scale, bias, ids, pair_weights, residual,
        OUTPUTS=outputs, INPUTS=inputs, ROWS=cut.outputs, TURN=cut.inputs, CHOSEN=ids.shape[1],
        SCALED=weight_scale is not None, BIASED=bias is not None, ADD=residual is not None,
        STAGES=cut.stages, PDL=pdl, num_warps=cut.warps, **launch(pdl),
    )  # fmt: skip
    return out


def gate_up_gemv_tiling(weight: Tensor) -> ProductTiling:
    """Use whole rows of the weight, as far as they fit in a program."""
    turn = min(power(weight.shape[2]), 2048)
    return ProductTiling(max(1, 4096 * (3 - weight.itemsize) // 2 // turn), turn, warps=4, stages=3)


def down_gemv_tiling(weight: Tensor) -> ProductTiling:
    """Turns that the inputs fill. Programs are small and many, with several turns in flight."""
    inputs = weight.shape[2]
    turn = max(each for each in (256, 512, 1024) if each == 256 or -(-inputs // each) * each <= 1.1 * inputs)
    return ProductTiling(max(1, 1024 * (3 - weight.itemsize) // turn), turn, warps=2, stages=8)
