"""Products of 129 to 192 rows with a large weight in FP8, with tiles copied by TMA.

A program multiplies a tile of the weight with all rows: with a tile of 128 and one of the rest. So each
number of the weight is copied to one place only, and few of the rows that are multiplied are beyond the end.
docs/quantization.md compares it with torch's products.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.triton.gemm.skinny_gemm import ENOUGH
from engine.kernels.triton.gemm.tma_gemm import SMALL, TALLEST, WIDE
from engine.kernels.triton.launch import launch
from engine.kernels.triton.norm.norm import Normed
from engine.kernels.triton.padding import padded_rows, readable_rows

RESTS = (16, 32, 64)  # rows of the second tile
TURN = 128  # inputs per turn


@dataclass(frozen=True, slots=True)
class Tall:
    """How a product is split into programs, each of which has all rows."""

    rows: int  # of the first tile
    rest: int  # of the second one
    outputs: int  # per program
    inputs: int  # per turn
    warps: int
    stages: int  # turns whose tiles are in flight
    parts: int = 1  # programs that share the inputs of the same outputs


@triton.jit
def _store(out, total, steps, scale, output, row, rows, outputs):
    total *= tl.load(scale + output, mask=output < outputs, other=0.0)[:, None]
    total *= tl.load(steps + row, mask=row < rows, other=0.0)[None, :]
    to = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(
        out + to, total.to(out.dtype.element_ty), mask=(output < outputs)[:, None] & (row < rows)[None, :]
    )


@triton.jit(do_not_specialize=["rows"])
def _tall_gemm(
    out, tiles_of_x, rest_of_x, tiles_of_weight, steps, scale, rows, outputs, share,
    ROWS: tl.constexpr, REST: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    first, part = tl.program_id(0) * COLUMNS, tl.program_id(1)
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    rest = tl.zeros([COLUMNS, REST], tl.float32)
    for at in tl.range(part * share, part * share + share, TURN, num_stages=STAGES):
        weight = tiles_of_weight.load([first, at])
        total = tl.dot(weight, tiles_of_x.load([0, at]).T, total)
        rest = tl.dot(weight, rest_of_x.load([ROWS, at]).T, rest)
    out += part.to(tl.int64) * rows * outputs
    output = first + tl.arange(0, COLUMNS)
    _store(out, total, steps, scale, output, tl.arange(0, ROWS), rows, outputs)
    _store(out, rest, steps, scale, output, ROWS + tl.arange(0, REST), rows, outputs)


def tall_gemm(x: Normed, weight: Tensor, how: Tall, scale: Tensor, *, pdl: bool = False) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], as in tma_gemm; `x` is rounded, `scale` the outputs'."""
    (rows, inputs), outputs = x.values.shape, len(weight)
    assert rows <= how.rows + how.rest and inputs % (how.parts * how.inputs) == 0
    if how.parts > 1:
        out = torch.empty(how.parts, rows, outputs, dtype=torch.float32, device=weight.device)
    else:
        out = padded_rows(rows, outputs, like=x.values, dtype=x.dtype).unsqueeze(0)
    _tall_gemm[(triton.cdiv(outputs, how.outputs), how.parts)](
        out, _tiles(x.values, how.rows, how), _tiles(x.values, how.rest, how),
        TensorDescriptor.from_tensor(weight, [how.outputs, how.inputs]), x.steps, scale,
        rows, outputs, inputs // how.parts,
        ROWS=how.rows, REST=how.rest, COLUMNS=how.outputs, TURN=how.inputs, STAGES=how.stages, PDL=pdl,
        num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return out


def _tiles(x: Tensor, rows: int, how: Tall) -> TensorDescriptor:
    """The TMA descriptor of tiles of so many rows, which includes whole ones if there is memory for them."""
    count = readable_rows(x, how.rest)
    return TensorDescriptor(x, [count, x.shape[1]], list(x.stride()), [rows, how.inputs])


def tall_tiling(rows: int, weight: Tensor) -> Tall | None:
    """None: another kernel is faster, or the weight's shape is not supported."""
    outputs, inputs = weight.shape
    if rows <= TALLEST or inputs % (2 * TURN) or weight.numel() <= SMALL:
        return None
    rest = next((rest for rest in RESTS if rows <= TALLEST + rest), None)
    if rest is None:
        return None
    if outputs >= WIDE:
        return Tall(TALLEST, rest, 128, TURN, warps=8, stages=5)
    if not 3072 <= outputs <= 64 * ENOUGH:
        return None
    return Tall(TALLEST, rest, 64, TURN, warps=4, stages=6, parts=2 if outputs <= 64 * ENOUGH // 2 else 1)
