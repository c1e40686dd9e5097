"""What LoRA adapters add to a product: x @ down @ up, with other matrices for each row.

Two kernels, with the product between them: `shrink` multiplies x by each row's `down`, and `expand` adds the
result times `up` to the product, in place. The product loads its weight during `shrink`, and `expand` loads
`up` while the product ends.

Rows are in tiles. A program multiplies its tile by the matrices of each adapter in it, and keeps the
adapter's own rows: a tile of a prompt has one, and a tile without adapters is left alone.

A table has the addresses of the matrices. Kernels read it, and the place of each row's adapter in it, on the
device, so a captured graph runs any adapters. Its first place is for rows without an adapter.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up
from engine.kernels.triton.norm.swiglu import KINDS

NONE = tl.constexpr(2**30)  # after the last adapter of a tile
_FIELDS = tl.constexpr(8)  # numbers for each module of an adapter: see table.py of the adapters
_DEEP = 64  # ranks per program of `shrink`, and per turn of `expand`
_BYTES = 2**14  # of a tile in shared memory
_WIDE = 128  # outputs per program of `expand`
_ENOUGH = 64  # programs
_WARPS = 4


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """Where the kernels find the adapters of a product's modules, and of each row."""

    table: Tensor  # [places, modules, fields]: the modules of one product
    places: Tensor  # [rows]: where each one's adapter is in the table
    rank: int  # the largest, a power of two
    widest: int  # outputs of the widest module
    aligned: int  # a power of two that divides where modules begin and end, at most 16
    dtype: torch.dtype  # of the matrices


@triton.jit
def _next(place, after):
    return tl.min(tl.where(place > after, place, NONE), 0)


@triton.jit
def _matrix(table, place, stride, half: tl.constexpr):
    """The address and the rank of a module's matrix: `half` is 0 for down, 1 for up."""
    at = table + tl.where(place < NONE, place, 0) * stride
    return tl.load(at + half), tl.load(at + 2).to(tl.int32)


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _shrink(
    narrow, x, places, table, rows, x_stride, table_stride,
    INPUTS: tl.constexpr, SHARE: tl.constexpr, RANK: tl.constexpr, DEEP: tl.constexpr, ROWS: tl.constexpr,
    TURN: tl.constexpr, KIND: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    SLICES: tl.constexpr = RANK // DEEP
    module = tl.program_id(2) // SLICES
    deep = tl.program_id(2) % SLICES * DEEP + tl.arange(0, DEEP)
    place = tl.load(places + row, mask=row < rows, other=0).to(tl.int32)
    current = _next(place, 0)
    down, rank = _matrix(table + module * _FIELDS, current, table_stride, 0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    of_x = x + row.to(tl.int64)[:, None] * x_stride
    total = tl.zeros([ROWS, DEEP], tl.float32)
    while current < NONE:
        weight = tl.multiple_of(down.to(tl.pointer_type(KIND)), 16)
        found = tl.zeros([ROWS, DEEP], tl.float32)
        end = tl.where(rank > 0, SHARE, 0)
        for begin in tl.range(0, end, TURN, num_stages=STAGES):
            at = part * SHARE + begin + tl.arange(0, TURN)
            fits = at < INPUTS
            v = tl.load(of_x + at[None, :], mask=(row < rows)[:, None] & fits[None, :], other=0.0)
            of_weight = weight + deep[None, :] * INPUTS + at[:, None]
            w = tl.load(of_weight, mask=(deep < rank)[None, :] & fits[:, None], other=0.0)
            found = tl.dot(v.to(KIND), w, found, input_precision="ieee")
        total = tl.where((place == current)[:, None], found, total)
        current = _next(place, current)
        down, rank = _matrix(table + module * _FIELDS, current, table_stride, 0)
    modules = tl.num_programs(2) // SLICES
    to = ((part * rows + row).to(tl.int64) * modules + module) * RANK
    tl.store(narrow + to[:, None] + deep[None, :], total, mask=(row < rows)[:, None])


@triton.jit
def _rows_of(up, begin, rank, output, outputs, DEEP: tl.constexpr, KIND: tl.constexpr):
    """Rows of an adapter's `up`, which begin at multiples of 16."""
    across = tl.multiple_of((outputs + 15) // 16 * 16, 16)
    deep = begin + tl.arange(0, DEEP)
    weight = tl.multiple_of(up.to(tl.pointer_type(KIND)), 16)
    fits = (deep < rank)[:, None] & (output < across)[None, :]
    return tl.load(weight + deep[:, None] * across + output[None, :], mask=fits, other=0.0)


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _expand(
    out, narrow, places, table, rows, out_stride, table_stride,
    PARTS: tl.constexpr, RANK: tl.constexpr, DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    ALIGNED: tl.constexpr, KIND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    module, modules = tl.program_id(2), tl.num_programs(2)
    place = tl.load(places + row, mask=row < rows, other=0).to(tl.int32)
    of_module = table + module * _FIELDS
    first = tl.multiple_of(tl.load(of_module + 3).to(tl.int32), ALIGNED)
    outputs = tl.multiple_of(tl.load(of_module + 4).to(tl.int32), ALIGNED)
    current, begin = _next(place, 0), 0
    up, rank = _matrix(of_module, current, table_stride, 1)
    w = _rows_of(up, begin, rank, output, outputs, DEEP, KIND)
    if PDL:
        tl.extra.cuda.gdc_wait()
    mine = (place > 0) & (row < rows)
    to = out + row.to(tl.int64)[:, None] * out_stride + (first + output)[None, :]
    there = mine[:, None] & (output < outputs)[None, :]
    before = tl.load(to, mask=there, other=0.0).to(tl.float32)
    of_narrow = (row.to(tl.int64) * modules + module) * RANK
    total = tl.zeros([ROWS, WIDE], tl.float32)
    while current < NONE:  # through the ranks of each adapter
        at = of_narrow[:, None] + (begin + tl.arange(0, DEEP))[None, :]
        v = add_up(narrow, at, mine[:, None], rows * modules * RANK, PARTS)
        found = tl.dot(v.to(KIND), w, input_precision="ieee")
        total += tl.where((place == current)[:, None], found, 0.0)
        begin += DEEP
        if begin >= rank:
            current, begin = _next(place, current), 0
        up, rank = _matrix(of_module, current, table_stride, 1)
        w = _rows_of(up, begin, rank, output, outputs, DEEP, KIND)
    tl.store(to, (before + total).to(out.dtype.element_ty), mask=there)


def shrink(x: Tensor, adapters: RowAdapters, *, pdl: bool = False) -> Tensor:
    """[rows, inputs] -> [parts, rows, modules, rank] in float32. `pdl` as in Tile."""
    (rows, inputs), modules = x.shape, adapters.table.shape[1]
    tall, deep = _tall(rows), min(adapters.rank, _DEEP)
    turn = _BYTES // (max(tall, deep) * max(x.itemsize, adapters.dtype.itemsize))
    turn = min(256, turn, max(16, power(inputs)))
    tiles, slices, turns = triton.cdiv(rows, tall), adapters.rank // deep, triton.cdiv(inputs, turn)
    parts = 1
    while tiles * modules * slices * parts < _ENOUGH and 4 * parts <= turns:
        parts *= 2
    narrow = torch.empty(parts, rows, modules, adapters.rank, dtype=torch.float32, device=x.device)
    _shrink[(tiles, parts, modules * slices)](
        narrow, x, adapters.places, adapters.table, rows, x.stride(0), adapters.table.stride(0),
        INPUTS=inputs, SHARE=triton.cdiv(turns, parts) * turn, RANK=adapters.rank, DEEP=deep, ROWS=tall,
        TURN=turn, KIND=KINDS[adapters.dtype], STAGES=3, PDL=pdl, num_warps=_WARPS, **launch(pdl),
    )  # fmt: skip
    return narrow


def expand(out: Tensor, narrow: Tensor, adapters: RowAdapters, *, pdl: bool = False) -> None:
    """Add to `out` [rows, outputs] what each row's adapter adds. `narrow`: from `shrink`."""
    parts, rows, modules, rank = narrow.shape
    tall = _tall(rows)
    _expand[(triton.cdiv(rows, tall), triton.cdiv(adapters.widest, _WIDE), modules)](
        out, narrow, adapters.places, adapters.table, rows, out.stride(0), adapters.table.stride(0),
        PARTS=parts, RANK=rank, DEEP=min(rank, _DEEP), ROWS=tall, WIDE=_WIDE, ALIGNED=adapters.aligned,
        KIND=KINDS[adapters.dtype], PDL=pdl, num_warps=_WARPS, **launch(pdl),
    )  # fmt: skip


def _tall(rows: int) -> int:
    return 16 if rows <= 16 else 32 if rows <= 32 else 64
