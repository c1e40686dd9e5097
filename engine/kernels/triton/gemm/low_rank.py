"""What LoRA adapters add to a product: x @ down @ up, with other matrices for each row.

Two kernels, with the product between them: `shrink` multiplies x by each row's `down`, and `expand` adds the
result times `up` to the product, in place. It loads `up` while the product ends. A product of few rows is in
one launch with `shrink` (`skinny_gemm_shrink`), and the kernel that reads it adds the rest (row_terms.py).
`expand_swiglu` adds to gate and up, and is their activation.

Rows are in tiles. A program multiplies its tile by the matrices of the adapters in it, several at once if
there are few rows, and keeps each adapter's own rows: a tile of a prompt has one, and a tile without adapters
is left alone.

A table has the addresses of the matrices. Kernels read it, and the place of each row's adapter in it, on the
device, so a captured graph runs any adapters. Its first place is for rows without an adapter.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import switches
from engine.kernels.triton.gemm.row_terms import FIELDS, RowAdapters
from engine.kernels.triton.gemm.skinny_gemm import ENOUGH, NARROW, ProductTiling, multiplied_rows, silu_mul
from engine.kernels.triton.launch import launch, power
from engine.kernels.triton.norm.norm import add_up
from engine.kernels.triton.norm.swiglu import KINDS
from engine.kernels.triton.padding import padded_rows
from engine.kernels.triton.prefetch import LINE, prefetch

NONE = tl.constexpr(2**30)  # after the last adapter of a tile
_DEEP = 64  # ranks per program of `shrink`, and per turn of `expand`: of one adapter or of several
_BYTES = 2**14  # of a tile in shared memory
_HELD = 2**13  # numbers of all parts that a program of `expand` adds up
_WIDE = 128  # outputs per program of `expand`
_ENOUGH = 64  # programs
_WARPS = 4
_LINES = tl.constexpr(32)  # of an adapter's `up`: the most that a program has the L2 cache read
_REGISTERS = 112  # of a product with `shrink`: leaves room for the next kernel


@triton.jit
def _next(place, after):
    return tl.min(tl.where(place > after, place, NONE), 0)


@triton.jit
def group(place, current, DEEP: tl.constexpr, GROUP: tl.constexpr):
    """The adapters of a tile from `current` on, each for its ranks, and the next one of the tile."""
    nth = tl.arange(0, GROUP * DEEP) // DEEP
    adapter = tl.full([GROUP * DEEP], NONE, tl.int32)
    for each in tl.static_range(GROUP):
        adapter = tl.where(nth == each, current, adapter)
        current = _next(place, current)
    return adapter, current


@triton.jit
def first_of(places, tile, rows, DEEP: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """The rows of a tile, their places in the table, the first adapters of the tile, and the next one."""
    row = tile * ROWS + tl.arange(0, ROWS)
    place = tl.load(places + row, mask=row < rows, other=0).to(tl.int32)
    adapter, current = group(place, _next(place, 0), DEEP, GROUP)
    return row, place, adapter, current


@triton.jit
def matrices(table, adapter, stride, half: tl.constexpr):
    """The addresses and the ranks of a module's matrices: `half` is 0 for down, 1 for up."""
    at = table + tl.where(adapter < NONE, adapter, 0) * stride
    return tl.load(at + half), tl.load(at + 2).to(tl.int32)


@triton.jit
def shrunk(
    narrow, x, table, rows, x_stride, table_stride, row, place, adapter, current, part, nth,
    MODULES: tl.constexpr, INPUTS: tl.constexpr, SHARE: tl.constexpr, RANK: tl.constexpr, DEEP: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr, KIND: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A tile of rows times a part of the inputs of `nth`: some ranks of a module."""
    SLICES: tl.constexpr = RANK // DEEP
    module = nth // SLICES
    deep = nth % SLICES * DEEP + tl.arange(0, GROUP * DEEP) % DEEP
    down, rank = matrices(table + module * FIELDS, adapter, table_stride, 0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    of_x = x + row.to(tl.int64)[:, None] * x_stride
    to = narrow + (((part * rows + row).to(tl.int64) * MODULES + module) * RANK)[:, None] + deep[None, :]
    while tl.min(adapter, 0) < NONE:
        weight = tl.multiple_of(down.to(tl.pointer_type(KIND)), 16) + deep * INPUTS
        found = tl.zeros([ROWS, GROUP * DEEP], tl.float32)
        end = tl.where(tl.max(rank, 0) > 0, SHARE, 0)
        for begin in tl.range(0, end, TURN, num_stages=STAGES):
            at = part * SHARE + begin + tl.arange(0, TURN)
            fits = at < INPUTS
            v = tl.load(of_x + at[None, :], mask=(row < rows)[:, None] & fits[None, :], other=0.0)
            w = tl.load(weight[None, :] + at[:, None], mask=(deep < rank)[None, :] & fits[:, None], other=0.0)
            found = tl.dot(v.to(KIND), w, found, input_precision="ieee")
        tl.store(to, found, mask=place[:, None] == adapter[None, :])
        adapter, current = group(place, current, DEEP, GROUP)
        down, rank = matrices(table + module * FIELDS, adapter, table_stride, 0)


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _shrink(
    narrow, x, places, table, rows, x_stride, table_stride,
    MODULES: tl.constexpr, INPUTS: tl.constexpr, SHARE: tl.constexpr, RANK: tl.constexpr, DEEP: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr, KIND: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row, place, adapter, current = first_of(places, tl.program_id(0), rows, DEEP, GROUP, ROWS)
    shrunk(
        narrow, x, table, rows, x_stride, table_stride, row, place, adapter, current,
        tl.program_id(1), tl.program_id(2),
        MODULES, INPUTS, SHARE, RANK, DEEP, GROUP, ROWS, TURN, KIND, STAGES, PDL,
    )  # fmt: skip


@triton.jit
def up_lines(
    places, table, rows, table_stride, program,
    OUTPUTS: tl.constexpr, RANK: tl.constexpr, LINES: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """A program's share of the lines of `up` of the first adapters of some rows; of others, one of the table.

    Of a product that is one module. `LINES`: of an adapter, at most _LINES.
    """
    row = tl.arange(0, ROWS)
    place = tl.load(places + row, mask=row < rows, other=0).to(tl.int32)
    adapter, _ = group(place, _next(place, 0), _LINES, GROUP)
    up, rank = matrices(table, adapter, table_stride, 1)
    nth = tl.arange(0, GROUP * _LINES) % _LINES
    at = (program * LINES + nth) * (LINE // (KIND.primitive_bitwidth // 8))
    there = (nth < LINES) & (at < rank * ((OUTPUTS + 15) // 16 * 16))
    kind: tl.constexpr = tl.pointer_type(KIND)
    return tl.where(there, up.to(kind) + at, table.to(kind) + at * 0)


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _skinny_gemm_shrink(
    out, narrow, x, weight, places, table, rows, table_stride,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHT_TURN: tl.constexpr, WEIGHT_PARTS: tl.constexpr,
    WEIGHT_STAGES: tl.constexpr, COUNT: tl.constexpr, AHEAD: tl.constexpr, LINES: tl.constexpr,
    MODULES: tl.constexpr, INPUTS: tl.constexpr, SHARE: tl.constexpr, RANK: tl.constexpr, DEEP: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr, KIND: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.program_id(0) - AHEAD
    if tile >= 0:
        if LINES > 0:
            program = tile * WEIGHT_PARTS + tl.program_id(1)
            soon = up_lines(
                places, table, rows, table_stride, program, OUTPUTS, RANK, LINES, GROUP, ROWS, KIND
            )
        multiplied_rows(
            out, x, weight, x, x, rows, tile, tl.program_id(1), OUTPUTS, INPUTS, ROWS, COLUMNS, WEIGHT_TURN,
            False, False, None, WEIGHT_PARTS, 1, WEIGHT_STAGES, PDL,
        )  # fmt: skip
        if LINES > 0:  # the kernel that reads the product multiplies by them
            prefetch(soon)
    else:
        nth = tl.program_id(0) * WEIGHT_PARTS + tl.program_id(1)
        EACH: tl.constexpr = MODULES * (RANK // DEEP)
        if nth < COUNT:
            row, place, adapter, current = first_of(places, 0, rows, DEEP, GROUP, ROWS)
            shrunk(
                narrow, x, table, rows, INPUTS, table_stride, row, place, adapter, current,
                nth // EACH, nth % EACH,
                MODULES, INPUTS, SHARE, RANK, DEEP, GROUP, ROWS, TURN, KIND, STAGES, PDL,
            )  # fmt: skip


@triton.jit
def rows_of(up, begin, rank, output, outputs, DEEP: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr):
    """Rows of the adapters' `up`, which begin at multiples of 16."""
    across = tl.multiple_of((outputs + 15) // 16 * 16, 16)
    deep = begin + tl.arange(0, GROUP * DEEP) % DEEP
    weight = tl.multiple_of(up.to(tl.pointer_type(KIND)), 16) + deep * across
    fits = (deep < rank)[:, None] & (output < across)[None, :]
    return tl.load(weight[:, None] + output[None, :], mask=fits, other=0.0)


@triton.jit
def _first(
    table, place, nth, table_stride, output, outputs,
    DEEP: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """What `_term` takes of the first adapters of a tile, to be loaded ahead."""
    adapter, current = group(place, _next(place, 0), DEEP, GROUP)
    up, rank = matrices(table + nth * FIELDS, adapter, table_stride, 1)
    return adapter, current, rank, rows_of(up, 0, rank, output, outputs, DEEP, GROUP, KIND)


@triton.jit
def own(
    narrow, at, part_stride, place, adapter,
    PARTS: tl.constexpr, DEEP: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """What `shrink` made of each row, in the ranks of its own adapter; 0 in those of others."""
    part, deep = tl.arange(0, PARTS)[:, None, None], tl.arange(0, DEEP)[None, None, :]
    of_row = narrow + part * part_stride + at[None, :, None] + deep
    # One sum instead of one for each part: the compiler moves each of its terms through shared memory.
    made = tl.sum(tl.load(of_row, mask=(place > 0)[None, :, None], other=0.0), 0).to(KIND)
    ROWS: tl.constexpr = place.shape[0]
    every = tl.reshape(tl.broadcast_to(made[:, None, :], [ROWS, GROUP, DEEP]), [ROWS, GROUP * DEEP])
    return tl.where(place[:, None] == adapter[None, :], every, 0.0)


@triton.jit
def _term(
    narrow, at, part_stride, place, module, table_stride, output, outputs, adapter, current, rank, w,
    PARTS: tl.constexpr, DEEP: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """What the adapters of a tile add to outputs of a module."""
    total = tl.zeros([place.shape[0], output.shape[0]], tl.float32)
    begin = 0
    while tl.min(adapter, 0) < NONE:  # through the ranks of each group of adapters
        v = own(narrow + begin, at, part_stride, place, adapter, PARTS, DEEP, GROUP, KIND)
        total = tl.dot(v, w, total, input_precision="ieee")
        begin += DEEP
        if begin >= tl.max(rank, 0):
            adapter, current = group(place, current, DEEP, GROUP)
            begin = 0
        up, rank = matrices(module, adapter, table_stride, 1)
        w = rows_of(up, begin, rank, output, outputs, DEEP, GROUP, KIND)
    return total


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _expand(
    out, narrow, places, table, rows, out_stride, table_stride,
    PARTS: tl.constexpr, RANK: tl.constexpr, DEEP: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr, ALIGNED: tl.constexpr, KIND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    nth, modules = tl.program_id(2), tl.num_programs(2)
    place = tl.load(places + row, mask=row < rows, other=0).to(tl.int32)
    module = table + nth * FIELDS
    first = tl.multiple_of(tl.load(module + 3).to(tl.int32), ALIGNED)
    outputs = tl.multiple_of(tl.load(module + 4).to(tl.int32), ALIGNED)
    adapter, current, rank, w = _first(table, place, nth, table_stride, output, outputs, DEEP, GROUP, KIND)
    if PDL:
        tl.extra.cuda.gdc_wait()
    to = out + row.to(tl.int64)[:, None] * out_stride + (first + output)[None, :]
    there = (place > 0)[:, None] & (output < outputs)[None, :]
    before = tl.load(to, mask=there, other=0.0).to(tl.float32)
    total = _term(
        narrow, (row.to(tl.int64) * modules + nth) * RANK, rows * modules * RANK, place, module, table_stride,
        output, outputs, adapter, current, rank, w, PARTS, DEEP, GROUP, KIND,
    )  # fmt: skip
    tl.store(to, (before + total).to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _expand_swiglu(
    out, parts, narrow, places, table, rows, table_stride,
    WIDTH: tl.constexpr, PRODUCT_PARTS: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr,
    DEEP: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    place = tl.load(places + row, mask=row < rows, other=0).to(tl.int32)
    outputs = tl.load(table + 4).to(tl.int32)
    adapter, current, rank, w = _first(table, place, 0, table_stride, output, outputs, DEEP, GROUP, KIND)
    _, _, up_rank, up_w = _first(table, place, 1, table_stride, output, outputs, DEEP, GROUP, KIND)
    if PDL:
        tl.extra.cuda.gdc_wait()
    there = (row < rows)[:, None] & (output < WIDTH)[None, :]
    of_row = row.to(tl.int64)
    at = of_row[:, None] * (2 * WIDTH) + output[None, :]
    stride = rows.to(tl.int64) * (2 * WIDTH)
    of_narrow, narrow_stride = of_row * (2 * RANK), rows * (2 * RANK)
    gate = add_up(parts, at, there, stride, PRODUCT_PARTS) + _term(
        narrow, of_narrow, narrow_stride, place, table, table_stride, output, outputs,
        adapter, current, rank, w, PARTS, DEEP, GROUP, KIND,
    )  # fmt: skip
    dtype = out.dtype.element_ty
    more = add_up(parts, at + WIDTH, there, stride, PRODUCT_PARTS) + _term(
        narrow, of_narrow + RANK, narrow_stride, place, table + FIELDS, table_stride, output, outputs,
        adapter, current, up_rank, up_w, PARTS, DEEP, GROUP, KIND,
    )  # fmt: skip
    act = silu_mul(gate.to(dtype), more.to(dtype))
    tl.store(out + of_row[:, None] * WIDTH + output[None, :], act, mask=there)


def shrink(x: Tensor, adapters: RowAdapters, *, pdl: bool = False) -> Tensor:
    """[rows, inputs] -> [parts, rows, modules, rank] in float32, for rows with adapters. `pdl` as in Tile."""
    rows = len(x)
    how, parts = shrinking(x, adapters, _ENOUGH)
    narrow = torch.empty(parts, rows, how["MODULES"], adapters.rank, dtype=torch.float32, device=x.device)
    slices = how["MODULES"] * (adapters.rank // how["DEEP"])
    _shrink[(triton.cdiv(rows, how["ROWS"]), parts, slices)](
        narrow, x, adapters.places, adapters.table, rows, x.stride(0), adapters.table.stride(0),
        **how, KIND=KINDS[adapters.dtype], PDL=pdl, num_warps=_WARPS, **launch(pdl),
    )  # fmt: skip
    return narrow


def skinny_gemm_shrink(
    x: Tensor, weight: Tensor, cut: ProductTiling, adapters: RowAdapters, *, pdl: bool = False
) -> tuple[Tensor, Tensor]:
    """Launch `skinny_gemm` of a plain weight and `shrink` of the same rows, at most NARROW, at once."""
    rows, outputs = len(x), len(weight)
    products = triton.cdiv(outputs, cut.outputs) * cut.parts
    how, parts = shrinking(x, adapters, max(8, 2 * ENOUGH - products) if products < 2 * ENOUGH else _ENOUGH)
    kind = torch.float32 if cut.parts > 1 else x.dtype
    out = torch.empty(cut.parts, rows, outputs, dtype=kind, device=x.device)
    narrow = torch.empty(parts, rows, how["MODULES"], adapters.rank, dtype=torch.float32, device=x.device)
    count = parts * how["MODULES"] * (adapters.rank // how["DEEP"])
    ahead = triton.cdiv(count, cut.parts)
    share = 0
    if switches.FETCH_UP and adapters.outputs == (outputs,):
        lines = adapters.rank * power(outputs) * adapters.dtype.itemsize // LINE.value
        share = min(_LINES.value, triton.cdiv(lines, products))
    _skinny_gemm_shrink[(ahead + triton.cdiv(outputs, cut.outputs), cut.parts)](
        out, narrow, x, weight, adapters.places, adapters.table, rows, adapters.table.stride(0),
        OUTPUTS=outputs, COLUMNS=cut.outputs, WEIGHT_TURN=cut.inputs, WEIGHT_PARTS=cut.parts,
        WEIGHT_STAGES=cut.stages, COUNT=count, AHEAD=ahead, LINES=share, **how,
        KIND=KINDS[adapters.dtype], PDL=pdl, num_warps=cut.warps, **launch(pdl, _REGISTERS),
    )  # fmt: skip
    return out, narrow


def shrinking(x: Tensor, adapters: RowAdapters, enough: int) -> tuple[dict[str, int], int]:
    """The tiles of `shrink`, and in how many parts it cuts the inputs. `enough`: programs."""
    (rows, inputs), modules = x.shape, adapters.table.shape[1]
    tall, deep = _tall(rows, adapters.dtype), min(adapters.rank, _DEEP)
    group = group_of(rows, deep)
    turn = _BYTES // (max(tall, group * deep) * max(x.itemsize, adapters.dtype.itemsize))
    turn = min(256, turn, max(16, power(inputs)))
    programs, turns = triton.cdiv(rows, tall) * modules * (adapters.rank // deep), triton.cdiv(inputs, turn)
    parts = 1
    while 2 * programs * parts <= enough and 8 * parts <= turns and 2 * parts * tall * deep <= _HELD:
        parts *= 2
    share = triton.cdiv(turns, parts) * turn
    sizes = {"MODULES": modules, "INPUTS": inputs, "SHARE": share, "RANK": adapters.rank}
    return {**sizes, "DEEP": deep, "GROUP": group, "ROWS": tall, "TURN": turn, "STAGES": 3}, parts


def expand(out: Tensor, narrow: Tensor, adapters: RowAdapters, *, pdl: bool = False) -> None:
    """Add to `out` [rows, outputs] what each row's adapter adds. `narrow`: from `shrink`."""
    parts, rows, modules, rank = narrow.shape
    tall, deep = _tall(rows, adapters.dtype), min(rank, _DEEP)
    _expand[(triton.cdiv(rows, tall), triton.cdiv(max(adapters.outputs), _WIDE), modules)](
        out, narrow, adapters.places, adapters.table, rows, out.stride(0), adapters.table.stride(0),
        PARTS=parts, RANK=rank, DEEP=deep, GROUP=group_of(rows, deep), ROWS=tall, WIDE=_WIDE,
        ALIGNED=adapters.aligned, KIND=KINDS[adapters.dtype], PDL=pdl, num_warps=_WARPS, **launch(pdl),
    )  # fmt: skip


def expand_swiglu(parts: Tensor, narrow: Tensor, adapters: RowAdapters, *, pdl: bool = False) -> Tensor:
    """Like `swiglu` of a product of two modules, gate and up, with what each row's adapter adds to it."""
    narrow_parts, rows, _, rank = narrow.shape
    width, tall, deep = adapters.outputs[0], _tall(rows, adapters.dtype), min(rank, _DEEP)
    out = padded_rows(rows, width, like=parts, dtype=adapters.dtype)
    wide = _WIDE // 2  # there are two products
    _expand_swiglu[(triton.cdiv(rows, tall), triton.cdiv(width, wide))](
        out, parts, narrow, adapters.places, adapters.table, rows, adapters.table.stride(0),
        WIDTH=width, PRODUCT_PARTS=len(parts), PARTS=narrow_parts, RANK=rank, DEEP=deep,
        GROUP=group_of(rows, deep), ROWS=tall, WIDE=wide, KIND=KINDS[adapters.dtype], PDL=pdl,
        num_warps=_WARPS, **launch(pdl),
    )  # fmt: skip
    return out


def _tall(rows: int, dtype: torch.dtype) -> int:
    """Rows per program. Few in float32: the compiler unrolls such products, which takes minutes."""
    return 16 if rows <= 16 or dtype is torch.float32 else 32 if rows <= 32 else 64


def group_of(rows: int, deep: int) -> int:
    """Adapters per product: those of a step that decodes may all be others."""
    return min(_DEEP // deep, power(rows)) if rows <= NARROW else 1
