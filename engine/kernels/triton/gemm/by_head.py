"""Products of each head with a weight of its own: of queries with the projections of latents, and back."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up
from engine.kernels.triton.padding import padded_rows

NARROW = 16  # rows of the smallest tensor core product
FEW = 32  # up to this many rows, a program multiplies all inputs at once
WHOLE = 8192  # numbers of a weight that a program holds at once
TALL = (64, 128, 64, 3)  # for many rows: rows, outputs and inputs of a tile, and stages


@triton.jit
def _by_head(
    out, x, weight, tokens, x_part, x_token, x_head, out_token, w_head, w_input, w_output,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, OUT_HEAD: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, TURN)
    dtype = weight.dtype.element_ty
    there, fits = row < tokens, column < OUTPUTS
    of_head = weight + head.to(tl.int64) * w_head + column[None, :] * w_output
    given = x + head * x_head + row.to(tl.int64)[:, None] * x_token
    if TURN >= INPUTS:  # the weight does not depend on the previous kernel
        w = tl.load(of_head + at[:, None] * w_input, mask=(at < INPUTS)[:, None] & fits[None, :], other=0.0)
        if PDL:
            tl.extra.cuda.gdc_wait()
        mask = there[:, None] & (at < INPUTS)[None, :]
        total = tl.dot(add_up(given, at[None, :], mask, x_part, PARTS).to(dtype), w, input_precision="ieee")
    else:
        if PDL:
            tl.extra.cuda.gdc_wait()
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for begin in tl.range(0, INPUTS, TURN, num_stages=STAGES):
            here = begin + at
            inside = here < INPUTS
            w = tl.load(of_head + here[:, None] * w_input, mask=inside[:, None] & fits[None, :], other=0.0)
            value = add_up(given, here[None, :], there[:, None] & inside[None, :], x_part, PARTS).to(dtype)
            total = tl.dot(value, w, total, input_precision="ieee")
    where = row.to(tl.int64)[:, None] * out_token + head * OUT_HEAD + column[None, :]
    tl.store(out + where, total.to(dtype), mask=there[:, None] & fits[None, :])


def by_head(x: Tensor, weight: Tensor, *, out: Tensor | None = None, pdl: bool = False) -> Tensor:
    """[parts, tokens, heads, inputs] with [heads, inputs, outputs] -> [tokens, heads, outputs].

    The parts are added up first (norm.py). Numbers of a head are adjacent in `x` and in `out`, which may be
    parts of wider tensors. The weight may be transposed.
    """
    parts, tokens, heads, inputs = x.shape
    outputs = weight.shape[2]
    if out is None:
        out = padded_rows(tokens, heads, outputs, like=weight)
    rows, columns, turn, stages = TALL
    if parts > 1:  # they are in float32, and all of them would be in flight
        stages = 1
    if tokens <= FEW:
        rows, turn = max(NARROW, power(tokens)), max(NARROW, power(inputs))
        columns = max(NARROW, min(power(outputs), WHOLE // turn))
    elif weight.dtype.itemsize > 2:  # the compiler unrolls products in float32
        rows, columns, turn = NARROW, NARROW, NARROW
    _by_head[(heads, triton.cdiv(outputs, columns), triton.cdiv(tokens, rows))](
        out, x, weight, tokens, x.stride(0), x.stride(1), x.stride(2), out.stride(0), *weight.stride(),
        INPUTS=inputs, OUTPUTS=outputs, OUT_HEAD=out.stride(1), PARTS=parts,
        ROWS=rows, COLUMNS=columns, TURN=turn, STAGES=stages, PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out
