"""A product that is added to the residual stream, with half of the next norm.

The stream is normed in two steps. This kernel scales it and sums its squares piece by piece, as no program
has a whole row; the next product divides by the row's norm (norm.length_of). So the stream is rounded once
instead of twice, and no kernel runs between two products. The intermediate values need the range of bfloat16.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.tma_gemm import MOST, SMALL, Tiling, descriptors, multiplied
from engine.kernels.triton.launch import launch
from engine.kernels.triton.norm.norm import Normed
from engine.kernels.triton.padding import padded_rows

FEW, MANY = 16, 65  # faster for up to FEW rows and for at least MANY


@triton.jit(do_not_specialize=["rows"])
def _linear_residual_norm(
    scaled, squares, stream, tiles_of_x, tiles_of_weight, norm_weight, rows, inputs,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    piece = tl.program_id(0)
    top = tl.program_id(1) * ROWS
    output = piece * COLUMNS + tl.arange(0, COLUMNS)
    row = top + tl.arange(0, ROWS)
    there = (output < WIDTH)[:, None] & (row < rows)[None, :]
    norm_scale = tl.load(norm_weight + output, mask=output < WIDTH, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    at = row.to(tl.int64)[None, :] * WIDTH + output[:, None]
    before = tl.load(stream + at, mask=there, other=0.0)
    total, _ = multiplied(
        tiles_of_x, tiles_of_weight, top, piece * COLUMNS, 0, 0, inputs, ROWS, COLUMNS, TURN, False, STAGES
    )
    value = (before.to(tl.float32) + total.to(before.dtype).to(tl.float32)).to(before.dtype)
    wide = value.to(tl.float32)
    tl.store(stream + at, value, mask=there)
    tl.store(scaled + at, (wide * norm_scale[:, None]).to(before.dtype), mask=there)
    tl.store(squares + piece * rows + row, tl.sum(wide * wide, 0), mask=row < rows)


def linear_residual_norm(
    stream: Tensor,
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor,
    eps: float,
    how: Tiling,
    *,
    pdl: bool = False,
) -> Normed:
    """Add the product of [rows, inputs] with a weight to the stream, in place, and return the half-done norm.

    `norm_weight` and `eps` are the norm's. `pdl` as in Tile.
    """
    rows, width = stream.shape
    pieces = triton.cdiv(width, how.outputs)
    scaled = padded_rows(rows, width, like=stream)
    squares = torch.empty(pieces, rows, dtype=torch.float32, device=stream.device)
    _linear_residual_norm[(pieces, triton.cdiv(rows, how.rows))](
        scaled, squares, stream, *descriptors(x, weight, how), norm_weight, rows, x.shape[1],
        WIDTH=width, ROWS=how.rows, COLUMNS=how.outputs, TURN=how.inputs, STAGES=how.stages, PDL=pdl,
        num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return Normed(scaled, squares, eps)


def linear_residual_norm_tiling(rows: int, weight: Tensor) -> Tiling | None:
    """None: split inputs with a norm that adds the parts up are faster, or the dtype's range is too small."""
    inputs = weight.shape[1]
    if weight.numel() > SMALL or weight.dtype is not torch.bfloat16 or inputs % 256:
        return None
    if rows < 2 or FEW < rows < MANY or rows > MOST:
        return None
    tall = 16 if rows <= FEW else 32 if rows <= 128 else 64
    if inputs > 2048:  # twice as long, so use twice as many programs
        tall = max(16, tall // 2)
    return (
        Tiling(tall, 64, 128, warps=4, stages=5) if tall == 64 else Tiling(tall, 64, 256, warps=4, stages=4)
    )
