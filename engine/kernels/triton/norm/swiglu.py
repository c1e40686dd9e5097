"""The activations of MLPs: silu(gate) * up, or gelu(gate) * up, and the square of relu(up)."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.quantize_fp8 import fp8_rows, fp8_scale, to_fp8
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import Normed, add_up
from engine.kernels.triton.padding import padded_rows

TILE = 1024
KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit
def gated(
    parts, token, at, there, part_stride, dtype: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
    GELU: tl.constexpr,
):  # fmt: skip
    """The activation of a token, rounded where torch rounds."""
    gate = add_up(parts, token * (2 * WIDTH) + at, there, part_stride, PARTS).to(dtype).to(tl.float32)
    up = add_up(parts, token * (2 * WIDTH) + WIDTH + at, there, part_stride, PARTS).to(dtype)
    inner = gate
    if GELU:  # by tanh, which a sigmoid of twice the number gives
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    opened = (gate * tl.sigmoid(inner)).to(dtype)
    return (opened.to(tl.float32) * up.to(tl.float32)).to(dtype)


@triton.jit
def _swiglu(
    out, parts, part_stride,
    WIDTH: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = at < WIDTH
    act = gated(parts, token, at, there, part_stride, out.dtype.element_ty, WIDTH, PARTS, GELU)
    tl.store(out + token * WIDTH + at, act, mask=there)


def swiglu(parts: Tensor, dtype: torch.dtype, *, gelu: bool = False, pdl: bool = False) -> Tensor:
    """[parts, tokens, 2 * width], gates first -> [tokens, width]. `gelu`: by tanh, instead of silu."""
    count, tokens, both = parts.shape
    out = padded_rows(tokens, both // 2, like=parts, dtype=dtype)
    _swiglu[(tokens, triton.cdiv(both // 2, TILE))](
        out, parts, parts.stride(0),
        WIDTH=both // 2, TILE=TILE, PARTS=count, GELU=gelu, PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out


@triton.jit
def _rounded_swiglu(
    out, steps, parts, part_stride,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    act = gated(parts, token, at, at < WIDTH, part_stride, KIND, WIDTH, PARTS, False).to(tl.float32)
    step = fp8_scale(act, 0)
    tl.store(steps + token, step)
    tl.store(out + token * WIDTH + at, to_fp8(act, step), mask=at < WIDTH)


def rounded_swiglu(parts: Tensor, dtype: torch.dtype, *, pdl: bool = False) -> Normed:
    """Like `swiglu`, rounded to FP8: a program has a whole row."""
    count, tokens, both = parts.shape
    out, steps = fp8_rows(tokens, both // 2, device=parts.device)
    padded = power(both // 2)
    _rounded_swiglu[(tokens,)](
        out, steps, parts, parts.stride(0),
        WIDTH=both // 2, PADDED=padded, PARTS=count, KIND=KINDS[dtype], PDL=pdl,
        num_warps=min(32, max(1, padded // 512)), **launch(pdl),
    )  # fmt: skip
    return Normed(out, steps=steps, unrounded=dtype)


@triton.jit
def _relu2(
    out, parts, part_stride,
    WIDTH: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = at < WIDTH
    up = add_up(parts, token * WIDTH + at, there, part_stride, PARTS).to(out.dtype.element_ty).to(tl.float32)
    up = tl.maximum(up, 0.0)
    tl.store(out + token * WIDTH + at, (up * up).to(out.dtype.element_ty), mask=there)


def relu2(parts: Tensor, dtype: torch.dtype, *, pdl: bool = False) -> Tensor:
    """[parts, tokens, width] -> [tokens, width]."""
    count, tokens, width = parts.shape
    out = padded_rows(tokens, width, like=parts, dtype=dtype)
    _relu2[(tokens, triton.cdiv(width, TILE))](
        out, parts, parts.stride(0),
        WIDTH=width, TILE=TILE, PARTS=count, PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out
