"""xIELU, the activation of Apertus, in one launch instead of fourteen."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch

TILE = 1024


@triton.jit
def _expm1(x):
    """Near zero as a series, since a difference would lose all digits."""
    near = x * (1.0 + x * (0.5 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120)))))
    return tl.where(tl.abs(x) < 0.125, near, tl.exp(x) - 1.0)


@triton.jit
def _rounded(number, dtype: tl.constexpr):
    return number.to(dtype).to(tl.float32)


@triton.jit
def _xielu(
    out, x, count, positive, negative, beta, eps,
    TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rounded where torch rounds."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < count
    dtype: tl.constexpr = x.dtype.element_ty
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    line = _rounded(beta * value, dtype)
    above = _rounded(_rounded(positive * value, dtype) * value, dtype) + line
    curve = _rounded(_expm1(tl.minimum(value, eps)), dtype)
    below = _rounded(_rounded(curve - value, dtype) * negative, dtype) + line
    tl.store(out + at, tl.where(value > 0, above, below).to(dtype), mask=there)


def xielu(
    x: Tensor, positive: float, negative: float, beta: float, eps: float, *, pdl: bool = False
) -> Tensor:
    """x: contiguous, of any shape. The numbers are already rounded to its dtype. `pdl` as in Tile."""
    out = torch.empty_like(x)
    _xielu[(triton.cdiv(x.numel(), TILE),)](
        out, x, x.numel(), positive, negative, beta, eps, TILE=TILE, PDL=pdl, num_warps=4,
        enable_fp_fusion=False, **launch(pdl),
    )  # fmt: skip
    return out
