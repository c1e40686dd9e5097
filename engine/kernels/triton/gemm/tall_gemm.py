"""Products of 129 to 256 rows, more than one tile of them, with a large weight in 16 bits or FP8.

A program multiplies a tile of the weight with all rows: a tile of 128 and one of the rest, or one of 256, so
that each number of the weight is copied to one place only. If tiles do not divide into the GPU's processors,
the programs get equal shares of all turns instead of whole tiles: the program before writes down the sums of
a tile that it begins, first of all, and the one after it continues from them, last of all. So no sum changes
by it, and hardly any program waits.
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

USED = False  # whether the engine uses these tiles


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
    shares: int = 0  # programs that get equal shares of all turns; 0: each gets a tile, or a part of it


@triton.jit
def _sums(
    tiles_of_x, rest_of_x, tiles_of_weight, first, second, begin, end, total, rest, up, up_rest,
    ROWS: tl.constexpr, REST: tl.constexpr, TURN: tl.constexpr, GATED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add the products of these turns to the sums: of the first tile of rows and of the rest."""
    for at in tl.range(begin * TURN, end * TURN, TURN, num_stages=STAGES):
        weight = tiles_of_weight.load([first, at])
        x = tiles_of_x.load([0, at]).T
        total = tl.dot(weight, x, total)
        if REST > 0:
            more = rest_of_x.load([ROWS, at]).T
            rest = tl.dot(weight, more, rest)
        if GATED:
            weight_up = tiles_of_weight.load([second, at])
            up = tl.dot(weight_up, x, up)
            if REST > 0:
                up_rest = tl.dot(weight_up, more, up_rest)
    return total, rest, up, up_rest


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
    out, sums, flags, tiles_of_x, rest_of_x, tiles_of_weight, steps, scale,
    rows, outputs, tiles, turns, share,
    ROWS: tl.constexpr, REST: tl.constexpr, SECOND: tl.constexpr, COLUMNS: tl.constexpr, TURN: tl.constexpr,
    GATED: tl.constexpr, SCALED: tl.constexpr, ROUNDED: tl.constexpr, PROGRAMS: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program, part = tl.program_id(0), tl.program_id(1)
    if PROGRAMS > 0:
        # Numbered as they start: a program waits only for one that has started before it.
        program = tl.atomic_add(flags + PROGRAMS, 1, sem="relaxed")
        if program == PROGRAMS - 1:
            tl.atomic_xchg(flags + PROGRAMS, 0, sem="relaxed")
        begin, end = tiles * turns * program // PROGRAMS, tiles * turns * (program + 1) // PROGRAMS
        last = (end - 1) // turns
        count = last - begin // turns + 1
    else:
        last, count = program, 1
    SIZE: tl.constexpr = (ROWS + REST) * COLUMNS * (2 if GATED else 1)
    column = tl.arange(0, COLUMNS)
    at = column[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    at_rest = column[:, None] * SECOND + tl.arange(0, SECOND)[None, :] + COLUMNS * ROWS
    at_up = COLUMNS * (ROWS + REST)
    for back in range(count):
        tile = last - back
        if PROGRAMS > 0:
            low, high = tl.maximum(begin - tile * turns, 0), tl.minimum(end - tile * turns, turns)
        else:
            low, high = part * share, part * share + share
        total = tl.zeros([COLUMNS, ROWS], tl.float32)
        rest = tl.zeros([COLUMNS, SECOND], tl.float32)
        up = tl.zeros([COLUMNS, ROWS], tl.float32)
        up_rest = tl.zeros([COLUMNS, SECOND], tl.float32)
        if PROGRAMS > 0:  # noqa: SIM102  known to the compiler, unlike the other
            if low > 0:  # the program before began this tile
                waiting = tl.atomic_cas(flags + program - 1, 1, 0, sem="acquire") != 1
                while waiting:
                    waiting = tl.atomic_cas(flags + program - 1, 1, 0, sem="acquire") != 1
                there = sums + (program - 1) * SIZE
                total = tl.load(there + at, cache_modifier=".cg")
                if REST > 0:
                    rest = tl.load(there + at_rest, cache_modifier=".cg")
                if GATED:
                    up = tl.load(there + at_up + at, cache_modifier=".cg")
                    if REST > 0:
                        up_rest = tl.load(there + at_up + at_rest, cache_modifier=".cg")
        first = tile * COLUMNS
        total, rest, up, up_rest = _sums(
            tiles_of_x, rest_of_x, tiles_of_weight, first, outputs + first, low, high,
            total, rest, up, up_rest, ROWS, REST, TURN, GATED, STAGES,
        )  # fmt: skip
        if PROGRAMS > 0 and high < turns:  # the program after this one ends it
            there = sums + program * SIZE
            tl.store(there + at, total)
            if REST > 0:
                tl.store(there + at_rest, rest)
            if GATED:
                tl.store(there + at_up + at, up)
                if REST > 0:
                    tl.store(there + at_up + at_rest, up_rest)
            tl.debug_barrier()
            tl.atomic_xchg(flags + program, 1, sem="release")
        else:
            to, output = out + part.to(tl.int64) * rows * outputs, first + column
            _store(
                to, total, up, steps, scale, output, tl.arange(0, ROWS), rows, outputs,
                GATED, SCALED, ROUNDED,
            )  # fmt: skip
            if REST > 0:
                _store(
                    to, rest, up_rest, steps, scale, output, ROWS + tl.arange(0, SECOND), rows, outputs,
                    GATED, SCALED, ROUNDED,
                )  # fmt: skip


def tall_gemm(
    x: Normed,
    weight: Tensor,
    how: Tall,
    flags: Tensor,
    scale: Tensor | None = None,
    *,
    gated: bool = False,
    pdl: bool = False,
) -> Tensor:
    """[rows, inputs] -> [parts, rows, outputs], as in tma_gemm.

    `flags`: a zero for each share and one more, as they are afterwards.
    """
    rows, inputs = x.values.shape
    outputs = len(weight) // 2 if gated else len(weight)
    columns = how.outputs // 2 if gated else how.outputs
    tiles, turns = triton.cdiv(outputs, columns), inputs // how.inputs
    assert rows <= how.rows + how.rest and (how.shares == 0 or (how.parts == 1 and tiles >= how.shares))
    if how.parts > 1:
        out = torch.empty(how.parts, rows, outputs, dtype=torch.float32, device=weight.device)
    else:
        out = padded_rows(rows, outputs, like=x.values, dtype=x.dtype).unsqueeze(0)
    sums = flags.new_empty(how.shares * (how.rows + how.rest) * how.outputs, dtype=torch.float32)
    _tall_gemm[(how.shares or tiles, how.parts)](
        out, sums, flags,
        _tiles(x.values, how.rows, how), _tiles(x.values, how.rest or how.rows, how),
        TensorDescriptor.from_tensor(weight, [columns, how.inputs]), x.steps, scale,
        rows, outputs, tiles, turns, turns // how.parts,
        ROWS=how.rows, REST=how.rest, SECOND=max(16, how.rest), COLUMNS=columns, TURN=how.inputs, GATED=gated,
        SCALED=scale is not None, ROUNDED=x.steps is not None, PROGRAMS=how.shares,
        STAGES=how.stages, PDL=pdl, num_warps=how.warps, **launch(pdl),
    )  # fmt: skip
    return out


def _tiles(x: Tensor, rows: int, how: Tall) -> TensorDescriptor:
    """The TMA descriptor of tiles of so many rows, which includes whole ones if there is memory for them."""
    count = readable_rows(x, how.rest or how.rows)
    return TensorDescriptor(x, [count, x.shape[1]], list(x.stride()), [rows, how.inputs])


def tall_tiling(rows: int, weight: Tensor, *, gated: bool = False) -> Tall | None:
    """None: another kernel is used."""
    outputs, inputs = weight.shape
    if not USED or not TALLEST < rows <= MOST or weight.itemsize > 2 or inputs % 128:
        return None
    if weight.numel() <= SMALL or (gated and outputs < WIDE):
        return None
    turn = 128 // weight.itemsize
    first, rest = next((each for each in ((128, 16), (128, 32), (128, 64)) if rows <= sum(each)), (256, 0))
    if outputs >= WIDE:
        tiles = outputs // 128
        return Tall(first, rest, 128, turn, warps=8, stages=4, shares=ENOUGH if tiles >= ENOUGH else 0)
    return Tall(first, rest, 64, turn, warps=4, stages=5, parts=2 if outputs <= 64 * (ENOUGH // 2) else 1)
