"""Quantizes rows to FP8, each by its own maximum, for scaled products.

The norm and the activation of an MLP also round what they compute: norm.py and swiglu.py in norm/.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.padding import padded_rows

KIND = torch.float8_e4m3fn


@triton.jit
def fp8_scale(value, axis: tl.constexpr):
    """The scale that maps a row's maximum to the largest FP8 number."""
    return tl.maximum(tl.max(tl.abs(value), axis) / 448, 1e-20)


@triton.jit
def to_fp8(value, step):
    return (value * tl.div_rn(1.0, step)).to(tl.float8e4nv)


@triton.jit
def _quantize_fp8(
    out, steps, x,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    value = tl.load(x + row * INPUTS + at, mask=at < INPUTS, other=0.0).to(tl.float32)
    step = fp8_scale(value, 0)
    tl.store(steps + row, step)
    tl.store(out + row * WIDTH + at, to_fp8(value, step), mask=at < WIDTH)


def quantize_fp8(x: Tensor, width: int, *, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """[rows, inputs] -> [rows, width] of KIND, zero-padded, and the scales [rows] in float32."""
    rows, inputs = x.shape
    out, steps = fp8_rows(rows, width, device=x.device)
    padded = power(width)
    _quantize_fp8[(rows,)](
        out, steps, x,
        INPUTS=inputs, WIDTH=width, PADDED=padded, PDL=pdl,
        num_warps=min(8, max(1, padded // 512)), **launch(pdl),
    )  # fmt: skip
    return out, steps


def fp8_rows(rows: int, width: int, *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Allocate rows of KIND, and their scales."""
    steps = torch.empty(rows, dtype=torch.float32, device=device)
    return padded_rows(rows, width, like=steps, dtype=KIND), steps
