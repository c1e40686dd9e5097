"""A gate and a norm of groups of numbers: each is multiplied by the silu of its gate first."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up
from engine.kernels.triton.padding import padded_rows


@triton.jit
def _gated_group_norm(
    out, x, parts, weight, eps, part_stride,
    WIDTH: tl.constexpr, GATES: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, at = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    column = tl.program_id(1) * SIZE + at
    there = at < SIZE
    dtype = out.dtype.element_ty
    gate = add_up(parts, token * WIDTH + column, there, part_stride, PARTS).to(dtype).to(tl.float32)
    value = tl.load(x + token * GATES + column, mask=there, other=0.0) * (gate * tl.sigmoid(gate))
    value *= tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
    scale = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + token * GATES + column, (value * scale).to(dtype), mask=there)


def gated_group_norm(
    x: Tensor, parts: Tensor, weight: Tensor, eps: float, groups: int, *, pdl: bool = False
) -> Tensor:
    """[tokens, values] in float32 -> the same in the type of `weight` [values].

    The gates are the first numbers of a product [parts, tokens, width].
    """
    tokens, values = x.shape
    out = padded_rows(tokens, values, like=x, dtype=weight.dtype)
    padded = power(values // groups)
    _gated_group_norm[(tokens, groups)](
        out, x, parts, weight, eps, parts.stride(0),
        WIDTH=parts.shape[2], GATES=values, SIZE=values // groups, PADDED=padded, PARTS=len(parts), PDL=pdl,
        num_warps=min(8, max(1, padded // 256)), **launch(pdl),
    )  # fmt: skip
    return out
