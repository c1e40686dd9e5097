"""Products of few rows with a quantized weight: numbers become floats in registers, sums are in float32.

A decode step of a small batch waits for its weights, so that half or a quarter of the bytes is twice or four
times the speed, if nothing else stands in the way. Every program multiplies some outputs with all rows.
"""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attention.tiles import power

OUTPUTS, TURN = 8, 512  # of a program; inputs of a turn


@triton.jit
def _bytes(
    out, x, numbers, scale, inputs, outputs,
    COUNT: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    row = tl.program_id(1)
    there = output < outputs
    total = tl.zeros([COUNT, TURN], tl.float32)
    for begin in range(0, inputs, TURN):
        at = begin + tl.arange(0, TURN)
        fits = at < inputs
        value = tl.load(x + row * inputs + at, mask=fits, other=0.0).to(tl.float32)
        of = numbers + output.to(tl.int64)[:, None] * inputs + at[None, :]
        weight = tl.load(of, mask=there[:, None] & fits[None, :], other=0)
        total += weight.to(tl.float32) * value[None, :]
    result = tl.sum(total, 1) * tl.load(scale + output, mask=there, other=0.0)
    tl.store(out + row * outputs + output, result.to(out.dtype.element_ty), mask=there)


@triton.jit
def _nibbles(
    out, x, numbers, scale, zero, inputs, outputs,
    COUNT: tl.constexpr, TURN: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    row = tl.program_id(1)
    there = output < outputs
    groups = inputs // GROUP
    total = tl.zeros([COUNT, TURN // 2], tl.float32)
    for begin in range(0, inputs, TURN):
        at = begin // 2 + tl.arange(0, TURN // 2)  # bytes
        fits = at < inputs // 2
        low = tl.load(x + row * inputs + 2 * at, mask=fits, other=0.0).to(tl.float32)
        high = tl.load(x + row * inputs + 2 * at + 1, mask=fits, other=0.0).to(tl.float32)
        mask = there[:, None] & fits[None, :]
        pair = tl.load(
            numbers + output.to(tl.int64)[:, None] * (inputs // 2) + at[None, :], mask=mask, other=0
        )
        group = output.to(tl.int64)[:, None] * groups + (2 * at // GROUP)[None, :]
        by = tl.load(scale + group, mask=mask, other=0.0).to(tl.float32)
        less = tl.load(zero + group, mask=mask, other=0.0).to(tl.float32)
        first = ((pair & 15).to(tl.float32) - less) * low[None, :]
        second = ((pair >> 4).to(tl.float32) - less) * high[None, :]
        total += (first + second) * by
    tl.store(out + row * outputs + output, tl.sum(total, 1).to(out.dtype.element_ty), mask=there)


def bytes_times(x: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
    """[rows, inputs] times int8 [outputs, inputs] and a scale for each output -> [rows, outputs]."""
    (rows, inputs), outputs = x.shape, len(numbers)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(outputs, OUTPUTS), rows)
    turn = min(TURN, power(inputs))
    _bytes[grid](out, x, numbers, scale, inputs, outputs, COUNT=OUTPUTS, TURN=turn)
    return out


def nibbles_times(x: Tensor, numbers: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """[rows, inputs] times uint8 [outputs, inputs / 2], two numbers each; the others [outputs, groups]."""
    (rows, inputs), outputs = x.shape, len(numbers)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(outputs, OUTPUTS), rows)
    _nibbles[grid](
        out, x, numbers, scale, zero, inputs, outputs,
        COUNT=OUTPUTS, TURN=min(TURN, power(inputs)), GROUP=inputs // scale.shape[1],
    )  # fmt: skip
    return out
