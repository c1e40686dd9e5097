"""Products of 17 to 128 rows with a weight in 16 bits, by the units that copy whole tiles (TMA).

A tile of the weight is one side of a tensor core's product, a tile of x the other. Where outputs are few the
inputs are cut too, which leaves a sum in parts for whoever reads it next; where the MLP's activation follows,
gate and up are computed side by side. docs/gpu-steps.md has the figures beside cuBLAS'.
"""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.attention.launch import launch
from engine.kernels.attention.tiles import power
from engine.kernels.products import opened

FEWEST, MOST = 33, 128  # rows with which it is ahead of products.narrow and of cuBLAS
SMALL, SMALL_FEWEST = 2**23, 17  # with weights of so few numbers it is ahead from fewer rows on
WIDE = 16384  # outputs from which a program takes more of them
ROOM = 200 * 2**10  # bytes of shared memory that a program takes at most


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is shared out among programs."""

    rows: int  # of a program
    outputs: int
    inputs: int  # of a turn
    warps: int
    stages: int  # turns whose tiles are on their way
    parts: int = 1  # programs that share the inputs of the same outputs


@triton.jit(do_not_specialize=["rows"])
def _tiled(
    out, tiles_of_x, tiles_of_weight, rows, outputs, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr, GATED: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    first = tl.program_id(0) * COLUMNS
    part = tl.program_id(1)
    top = tl.program_id(2) * ROWS
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    total_up = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in tl.range(part * share, part * share + share, TURN, num_stages=STAGES):
        x = tiles_of_x.load([top, at]).T
        total = tl.dot(tiles_of_weight.load([first, at]), x, total)
        if GATED:
            total_up = tl.dot(tiles_of_weight.load([outputs + first, at]), x, total_up)
    result = total.to(out.dtype.element_ty)
    if GATED:
        result = opened(result, total_up.to(result.dtype))
    output = first + tl.arange(0, COLUMNS)
    row = top + tl.arange(0, ROWS)
    to = (part * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out + to, result, mask=(output < outputs)[:, None] & (row < rows)[None, :])


def tiled(x: Tensor, weight: Tensor, how: Tiling, *, gated: bool = False, early: bool = False) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], in float32 where parts are several. `early` as in Tile.

    `gated`: silu of the first half of the outputs, times the second; in one part.
    """
    rows, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    kind = torch.float32 if how.parts > 1 else x.dtype
    out = torch.empty(how.parts, rows, outputs, dtype=kind, device=x.device)
    _tiled[(triton.cdiv(outputs, how.outputs), how.parts, triton.cdiv(rows, how.rows))](
        out, TensorDescriptor.from_tensor(x, [how.rows, how.inputs]),
        TensorDescriptor.from_tensor(weight, [how.outputs, how.inputs]),
        rows, outputs, inputs // how.parts,
        ROWS=how.rows, COLUMNS=how.outputs, TURN=how.inputs, GATED=gated, STAGES=how.stages, EARLY=early,
        num_warps=how.warps, **launch(early),
    )  # fmt: skip
    return out


def for_tiled(rows: int, weight: Tensor, *, gated: bool = False) -> Tiling | None:
    """None: another kernel is ahead, or the weight's form does not lend itself to it."""
    outputs, inputs = weight.shape
    fewest = SMALL_FEWEST if weight.numel() <= SMALL else FEWEST
    if not fewest <= rows <= MOST or weight.itemsize != 2 or inputs % 128:
        return None
    tall = power(rows)
    if gated and tall > 64:  # so few programs do not fill the GPU any more
        return None
    if gated:
        return Tiling(tall, 64, 128, warps=4, stages=4)
    if outputs >= WIDE:
        return Tiling(tall, 128, 64, warps=4 if tall <= 64 else 8, stages=4 if tall <= 64 else 3)
    programs, parts = -(-outputs // 64), 1
    while programs * parts < (128 if tall <= 64 else 96) and inputs % (parts * 256) == 0 and parts < 4:
        parts *= 2
    return Tiling(tall, 64, 128, warps=4, stages=4, parts=parts)
