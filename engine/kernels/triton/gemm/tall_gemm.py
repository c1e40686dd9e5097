"""Products of 129 to 256 rows with a large weight in 16 bits or FP8, with tiles copied by TMA.

A program multiplies a tile of the weight with all rows: with a tile of 128 and one of the rest, or with one
of 256. So each number of the weight is copied to one place only, and few of the rows that are multiplied
are beyond the end. docs/gpu-steps.md and docs/quantization.md compare it with torch's products.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.triton.gemm.skinny_gemm import ENOUGH, silu_mul
from engine.kernels.triton.gemm.tma_gemm import MOST, SMALL, TALLEST, WIDE
from engine.kernels.triton.launch import launch
from engine.kernels.triton.norm.norm import Normed
from engine.kernels.triton.padding import padded_rows, readable_rows

# Whether weights in 16 bits and in FP8 use it. Sweeps did, but no GPU has run whole steps of FP8 with it.
IN_HALF, IN_FP8 = False, False
RESTS = (16, 32, 64)  # rows of the second tile


@dataclass(frozen=True, slots=True)
class Tall:
    """How a product is split into programs, each of which has all rows."""

    rows: int  # of the first tile
    rest: int  # of the second one; 0: there is none
    outputs: int  # per program; of both halves, if gated
    inputs: int  # per turn
    warps: int
    stages: int  # turns whose tiles are in flight
    parts: int = 1  # programs that share the inputs of the same outputs


@triton.jit
def _store(
    out, total, up, steps, scale, output, row, rows, outputs,
    GATED: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    if SCALED:
        total *= tl.load(scale + output, mask=output < outputs, other=0.0)[:, None]
    if ROUNDED:
        total *= tl.load(steps + row, mask=row < rows, other=0.0)[None, :]
    result = total.to(out.dtype.element_ty)
    if GATED:
        result = silu_mul(result, up.to(result.dtype))
    to = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out + to, result, mask=(output < outputs)[:, None] & (row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _tall_gemm(
    out, tiles_of_x, rest_of_x, tiles_of_weight, steps, scale, rows, outputs, share,
    ROWS: tl.constexpr, REST: tl.constexpr, SECOND: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr,
    GATED: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    first, part = tl.program_id(0) * COLUMNS, tl.program_id(1)
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    rest = tl.zeros([COLUMNS, SECOND], tl.float32)
    up = tl.zeros([COLUMNS, ROWS], tl.float32)
    up_rest = tl.zeros([COLUMNS, SECOND], tl.float32)
    for at in tl.range(part * share, part * share + share, TURN, num_stages=STAGES):
        weight = tiles_of_weight.load([first, at])
        x = tiles_of_x.load([0, at]).T
        total = tl.dot(weight, x, total)
        if REST > 0:
            more = rest_of_x.load([ROWS, at]).T
            rest = tl.dot(weight, more, rest)
        if GATED:
            weight_up = tiles_of_weight.load([outputs + first, at])
            up = tl.dot(weight_up, x, up)
            if REST > 0:
                up_rest = tl.dot(weight_up, more, up_rest)
    out += part.to(tl.int64) * rows * outputs
    output, row, row_rest = first + tl.arange(0, COLUMNS), tl.arange(0, ROWS), ROWS + tl.arange(0, SECOND)
    _store(out, total, up, steps, scale, output, row, rows, outputs, GATED, SCALED, ROUNDED)
    if REST > 0:
        _store(out, rest, up_rest, steps, scale, output, row_rest, rows, outputs, GATED, SCALED, ROUNDED)


def tall_gemm(
    x: Normed,
    weight: Tensor,
    how: Tall,
    scale: Tensor | None = None,
    *,
    gated: bool = False,
    pdl: bool = False,
) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], as in tma_gemm."""
    rows, inputs = x.values.shape
    outputs = len(weight) // 2 if gated else len(weight)
    columns = how.outputs // 2 if gated else how.outputs
    assert rows <= how.rows + how.rest and inputs % (how.parts * how.inputs) == 0
    if how.parts > 1:
        out = torch.empty(how.parts, rows, outputs, dtype=torch.float32, device=weight.device)
    else:
        out = padded_rows(rows, outputs, like=x.values, dtype=x.dtype).unsqueeze(0)
    _tall_gemm[(triton.cdiv(outputs, columns), how.parts)](
        out, _tiles(x.values, how.rows, how), _tiles(x.values, how.rest or how.rows, how),
        TensorDescriptor.from_tensor(weight, [columns, how.inputs]), x.steps, scale,
        rows, outputs, inputs // how.parts,
        ROWS=how.rows, REST=how.rest, SECOND=max(16, how.rest), COLUMNS=columns, TURN=how.inputs, GATED=gated,
        SCALED=scale is not None, ROUNDED=x.steps is not None, STAGES=how.stages, PDL=pdl,
        num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return out


def _tiles(x: Tensor, rows: int, how: Tall) -> TensorDescriptor:
    """The TMA descriptor of tiles of so many rows, which includes whole ones if there is memory for them."""
    count = readable_rows(x, how.rest or how.rows)
    return TensorDescriptor(x, [count, x.shape[1]], list(x.stride()), [rows, how.inputs])


def tall_tiling(rows: int, weight: Tensor, *, gated: bool = False) -> Tall | None:
    """None: another kernel is faster, or the weight's shape or dtype is not supported."""
    outputs, inputs = weight.shape
    turn = 128 // weight.itemsize
    if not TALLEST < rows <= MOST or weight.itemsize > 2 or inputs % (2 * turn) or weight.numel() <= SMALL:
        return None
    if not (IN_HALF if weight.itemsize == 2 else IN_FP8):
        return None
    rest = next((rest for rest in RESTS if rows <= TALLEST + rest), None)
    if rest is None:
        wide = weight.itemsize == 2 and gated and outputs >= WIDE
        return Tall(MOST, 0, 128, turn, warps=8, stages=4) if wide else None
    if gated or (weight.itemsize == 2 and outputs > 64 * ENOUGH // 2):
        return None
    if outputs >= WIDE:
        return Tall(TALLEST, rest, 128, turn, warps=8, stages=5)
    if not 3072 <= outputs <= 64 * ENOUGH:
        return None
    return Tall(TALLEST, rest, 64, turn, warps=4, stages=6, parts=2 if outputs <= 64 * ENOUGH // 2 else 1)
