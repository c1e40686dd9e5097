"""The activations of MLPs: silu(gate) * up, and the square of relu(up)."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch
from engine.kernels.triton.norm.norm import add_up
from engine.kernels.triton.padding import padded_rows

TILE = 1024


@triton.jit
def _swiglu(
    out, parts, part_stride,
    WIDTH: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = at < WIDTH
    dtype = out.dtype.element_ty
    gate = add_up(parts, token * (2 * WIDTH) + at, there, part_stride, PARTS).to(dtype).to(tl.float32)
    up = add_up(parts, token * (2 * WIDTH) + WIDTH + at, there, part_stride, PARTS).to(dtype)
    opened = (gate * tl.sigmoid(gate)).to(dtype)
    tl.store(out + token * WIDTH + at, (opened.to(tl.float32) * up.to(tl.float32)).to(dtype), mask=there)


def swiglu(parts: Tensor, dtype: torch.dtype, *, pdl: bool = False) -> Tensor:
    """[parts, tokens, 2 * width], gates first -> [tokens, width]."""
    count, tokens, both = parts.shape
    out = padded_rows(tokens, both // 2, like=parts, dtype=dtype)
    _swiglu[(tokens, triton.cdiv(both // 2, TILE))](
        out, parts, parts.stride(0),
        WIDTH=both // 2, TILE=TILE, PARTS=count, PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out


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
