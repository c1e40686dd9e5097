"""Products of 2 to 256 rows with a weight in 16 bits, int8 or FP8, with tiles copied by TMA.

A tile of the weight is one operand of a tensor core product, a tile of x the other. If outputs are few, the
inputs are split too, which leaves partial sums for the next kernel; with the MLP's activation, gate and up
are computed together. qkv_rope.py and linear_residual_norm.py use the same tiles with other epilogues. Rows
for an FP8 weight are in FP8, too, and Hopper's tensor cores add their products with 14 bits of precision.
An int8 weight, offset by 128, is converted to the rows' dtype in registers, from where tensor cores read it.
docs/gpu-steps.md and docs/quantization.md compare them with cuBLAS.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.triton.gemm.skinny_gemm import ENOUGH, SHORT, silu_mul
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import Normed, length_of
from engine.kernels.triton.padding import padded_rows, readable_rows

FEWEST, TALLEST = 33, 128  # row range in which it is faster than skinny_gemm.skinny_gemm and cuBLAS
SMALL, SMALL_FEWEST = 2**23, 17  # weights up to SMALL numbers: faster from fewer rows on
MOST = 256  # up to this many rows a product with such a weight, or one in 8 bits, is faster when fused
WIDE = 16384  # from this many outputs a program takes more of them
INT8_WIDE = 2**62  # the same for 65 to 128 rows of int8. 2**62: never; WIDE is faster, but no step was timed
ROOM = 200 * 2**10  # bytes of shared memory that a program takes at most
RESERVED = 6 * 2**10  # bytes of it beside the tiles


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is split into programs, including its rows."""

    rows: int  # per program
    outputs: int
    inputs: int  # per turn
    warps: int
    stages: int  # turns whose tiles are in flight
    parts: int = 1  # programs that share the inputs of the same outputs


@triton.jit
def _ended(total):
    """Have the tensor cores end here, since they would still read registers that the next turn writes.

    They run on after a turn. For a weight that was converted in registers, Triton 3.6 waits for too few of
    their products, and the next turn's conversion overwrites numbers that they have not read yet.
    """
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=f,f", [total], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def multiplied(
    tiles_of_x, tiles_of_weight, top, first, second, begin, end,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr, TWO: tl.constexpr, STAGES: tl.constexpr,
    SHORT: tl.constexpr = None,
):  # fmt: skip
    """[COLUMNS, ROWS] in float32: the outputs from `first` on and, if TWO, also those from `second` on.

    SHORT: converts four numbers of an int8 weight.
    """
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    beside = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in tl.range(begin, end, TURN, num_stages=STAGES):
        x = tiles_of_x.load([top, at]).T
        weight = tiles_of_weight.load([first, at])
        if SHORT is not None:
            weight = tl.inline_asm_elementwise(SHORT, "=r,=r,r", [weight], x.dtype, is_pure=True, pack=4)
        total = tl.dot(weight, x, total)
        if SHORT is not None:
            total = _ended(total)
        if TWO:
            beside = tl.dot(tiles_of_weight.load([second, at]), x, beside)
    return total, beside


@triton.jit(do_not_specialize=["rows"])
def _tma_gemm(
    out, tiles_of_x, tiles_of_weight, squares, steps, scale, rows, outputs, share, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr,
    ROUNDED: tl.constexpr, SHORT: tl.constexpr, WIDTH: tl.constexpr, PIECES: tl.constexpr,
    PADDED: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    first = tl.program_id(0) * COLUMNS
    part = tl.program_id(1)
    top = tl.program_id(2) * ROWS
    output = first + tl.arange(0, COLUMNS)
    row = top + tl.arange(0, ROWS)
    if PIECES > 0:
        length = length_of(squares, row, rows, eps, WIDTH, PIECES, PADDED)
    total, total_up = multiplied(
        tiles_of_x, tiles_of_weight, top, first, outputs + first, part * share, part * share + share,
        ROWS, COLUMNS, TURN, GATED, STAGES, SHORT,
    )  # fmt: skip
    if PIECES > 0:
        total *= length[None, :]
        total_up *= length[None, :]
    if SCALED:
        total *= tl.load(scale + output, mask=output < outputs, other=0.0)[:, None]
    if ROUNDED:
        total *= tl.load(steps + row, mask=row < rows, other=0.0)[None, :]
    result = total.to(out.dtype.element_ty)
    if GATED:
        result = silu_mul(result, total_up.to(result.dtype))
    to = (part * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out + to, result, mask=(output < outputs)[:, None] & (row < rows)[None, :])


def tma_gemm(
    x: Normed,
    weight: Tensor,
    how: Tiling,
    scale: Tensor | None = None,
    *,
    gated: bool = False,
    pdl: bool = False,
) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], in float32 if there are several parts. `pdl` as in Tile.

    `scale`: that of each output of a weight in 8 bits. `gated`: silu of the first half of the outputs, times
    the second; in one part, with a weight in 16 bits.
    """
    assert not (gated and scale is not None)
    rows, inputs = x.values.shape
    outputs = len(weight) // 2 if gated else len(weight)
    if how.parts > 1:
        out = torch.empty(how.parts, rows, outputs, dtype=torch.float32, device=weight.device)
    else:
        out = padded_rows(rows, outputs, like=x.values, dtype=x.dtype).unsqueeze(0)
    _tma_gemm[(triton.cdiv(outputs, how.outputs), how.parts, triton.cdiv(rows, how.rows))](
        out, *descriptors(x.values, weight, how), x.squares, x.steps, scale,
        rows, outputs, inputs // how.parts, x.eps,
        COLUMNS=how.outputs, GATED=gated, SCALED=scale is not None, ROUNDED=x.steps is not None,
        SHORT=SHORT[x.dtype] if weight.dtype is torch.uint8 else None, PDL=pdl, **constants(x, how),
        num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return out


def descriptors(x: Tensor, weight: Tensor, how: Tiling) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Return the TMA descriptors of both; x includes whole tiles if the memory behind it has room."""
    rows, width = readable_rows(x, how.rows), x.shape[1]
    return (
        TensorDescriptor(x, [rows, width], list(x.stride()), [how.rows, how.inputs]),
        TensorDescriptor.from_tensor(weight, [how.outputs, how.inputs]),
    )


def constants(x: Normed, how: Tiling) -> dict[str, int]:
    pieces = 0 if x.squares is None else len(x.squares)
    return {
        "ROWS": how.rows, "TURN": how.inputs, "STAGES": how.stages,
        "WIDTH": x.values.shape[1], "PIECES": pieces, "PADDED": power(max(1, pieces)),
    }  # fmt: skip


def tma_gemm_tiling(rows: int, weight: Tensor) -> Tiling | None:
    """None: another kernel is faster, or the weight's shape or dtype is not supported."""
    outputs, inputs = weight.shape
    fewest = SMALL_FEWEST if weight.numel() <= SMALL else FEWEST
    if not fewest <= rows <= TALLEST or weight.itemsize != 2 or inputs % 128:
        return None
    tall = power(rows)
    if outputs >= WIDE:
        return Tiling(tall, 128, 64, warps=4 if tall <= 64 else 8, stages=4 if tall <= 64 else 3)
    programs, parts = -(-outputs // 64), 1
    while programs * parts < (128 if tall <= 64 else 96) and inputs % (parts * 256) == 0 and parts < 4:
        parts *= 2
    return Tiling(tall, 64, 128, warps=4, stages=4, parts=parts)


def tma_fp8_tiling(rows: int, weight: Tensor) -> Tiling | None:
    """Like tma_gemm_tiling, for rows and a weight in FP8."""
    outputs, inputs = weight.shape
    if not 2 <= rows <= MOST or inputs % 128:
        return None
    if rows > TALLEST:
        if not 3072 <= outputs <= 4096 or inputs % 256:  # torch's product is faster
            return None
        if inputs > 2 * outputs:
            return Tiling(256, 64, 128, warps=4, stages=5, parts=2)
        return Tiling(128, 64, 256, warps=4, stages=4)
    tall = max(16, power(rows))
    if outputs >= WIDE:
        return Tiling(tall, 128, 128, warps=4, stages=3)
    programs, parts = -(-outputs // 64), 1
    while (
        programs * parts < (2 * ENOUGH if tall == 16 else ENOUGH - 4)
        and inputs % (parts * 512) == 0
        and parts < 4
    ):
        parts *= 2
    # As many turns in flight as fit if all programs run at once.
    room = ROOM // -(-programs * parts // ENOUGH) - RESERVED
    turns = ((256, 4), (256, 3), (128, 4)) if inputs % (parts * 256) == 0 else ((128, 4),)
    turn, stages = next(
        ((turn, stages) for turn, stages in turns if (64 + tall) * turn * stages <= room), (128, 3)
    )
    return Tiling(tall, 64, turn, warps=4, stages=stages, parts=parts)


def tma_int8_tiling(rows: int, weight: Tensor) -> Tiling | None:
    """Like tma_gemm_tiling, for a weight in int8."""
    outputs, inputs = weight.shape
    if not FEWEST <= rows <= MOST or inputs % 128:
        return None
    tall, parts = max(64, power(rows)), 1
    if tall == 128 and outputs >= INT8_WIDE:
        return Tiling(tall, 128, 64, warps=4, stages=3)
    turn, programs = 64 if tall == 256 else 128, -(-outputs // 64)
    while programs * parts < 2 * ENOUGH and inputs % (2 * parts * turn) == 0 and parts < 4:
        parts *= 2
    return Tiling(tall, 64, turn, warps=4, stages=3, parts=parts)


def tma_swiglu_tiling(rows: int, weight: Tensor) -> Tiling | None:
    """Like tma_gemm_tiling, for a product followed by the activation."""
    small = weight.numel() <= SMALL
    fewest, most = (2, MOST) if small else (SMALL_FEWEST, TALLEST)
    if 128 < rows <= 160:  # most of a third tile of 64 would be empty
        return None
    if not fewest <= rows <= most or weight.itemsize != 2 or weight.shape[1] % 128:
        return None
    if rows > 64 and not small:
        return Tiling(128, 128, 64, warps=8, stages=4)
    if rows > 128:
        return Tiling(64 if rows <= 192 else 128, 64, 64, warps=4, stages=4)
    tall = max(16, power(rows) // 2 if small and rows > 32 else power(rows))
    return Tiling(min(64, tall), 64, 128, warps=4, stages=4)
