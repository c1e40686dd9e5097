"""The gate of an attention's output: each number times the sigmoid of its own gate."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up
from engine.kernels.triton.padding import padded_rows

HEADS = 4  # per program


@triton.jit
def _sigmoid_gate(
    out, mixed, parts, part_stride,
    ALL: tl.constexpr, QUERIES: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, HEADS: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, PADDED)
    there = (head < QUERIES)[:, None] & (at < DIM)[None, :]
    line = (token * QUERIES + head)[:, None] * DIM + at[None, :]
    dtype = out.dtype.element_ty
    of_gate = token * ALL + (2 * head[:, None] + 1) * DIM + at[None, :]
    gate = add_up(parts, of_gate, there, part_stride, PARTS).to(dtype).to(tl.float32)
    opened = tl.sigmoid(gate).to(dtype).to(tl.float32)
    value = tl.load(mixed + line, mask=there, other=0.0).to(tl.float32)
    tl.store(out + line, (value * opened).to(dtype), mask=there)


def sigmoid_gate(mixed: Tensor, parts: Tensor, *, pdl: bool = False) -> Tensor:
    """[tokens, heads, dim]. A head's gate is behind its query in the QKV product [parts, tokens, all]."""
    tokens, heads, dim = mixed.shape
    out = padded_rows(tokens, heads, dim, like=mixed)
    _sigmoid_gate[(tokens, triton.cdiv(heads, HEADS))](
        out, mixed, parts, parts.stride(0),
        ALL=parts.shape[2], QUERIES=heads, DIM=dim, PADDED=power(dim), HEADS=HEADS, PARTS=len(parts),
        PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out
