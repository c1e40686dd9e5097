"""A product of a few rows, and what LoRA adapters add to it, in one launch.

The programs of `skinny_gemm` read the weight for so long that a few others compute the terms meanwhile: some
multiply x by `down`, then others multiply what those made by `up`. The terms are one more part of the
product. The kernel that reads it adds the parts up anyway, so it is the same as without adapters.

A program that waits for others must not keep them from starting. So the order in which programs begin, not
their number, decides which of the two each one does: whatever it waits for is running already.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.gemm.low_rank import (
    NONE,
    first_of,
    group,
    matrices,
    own,
    rows_of,
    shrinking,
    shrunk,
)
from engine.kernels.triton.gemm.row_terms import FIELDS, MOST_RANKS, RowAdapters
from engine.kernels.triton.gemm.skinny_gemm import (
    ENOUGH,
    NARROW,
    SMALL,
    ProductTiling,
    multiplied_rows,
)
from engine.kernels.triton.launch import launch
from engine.kernels.triton.norm.swiglu import KINDS

# Two counters of a launch, in fields of a product's first module that are not used: the programs that have
# begun and ended. They are 0 between launches.
BEGUN, ENDED = tl.constexpr(5), tl.constexpr(6)
LONG = 3 * SMALL  # numbers of a weight; reading fewer takes less time than the terms, one after the other
AT_ONCE = 2 * ENOUGH  # programs that run at the same time
MANY = 16  # with more rows, a product of more programs than that takes longer in one launch
_WIDE = 128  # outputs per program of the terms
_REGISTERS = 168  # leaves room for the next kernel; numbers that do not fit in them cost microseconds


@triton.jit
def _terms(
    out, narrow, table, rows, table_stride, row, place, adapter, current, program,
    OUTPUTS: tl.constexpr, MODULES: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr,
    GROUP: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr, KIND: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """What adapters add to some outputs of a module, once the programs of `down` have ended."""
    nth = program * 0
    share = program
    begin = program * 0
    for each in tl.static_range(MODULES):
        count = tl.cdiv(tl.load(table + each * FIELDS + 4).to(tl.int32), WIDE)
        mine = (program >= begin) & (program < begin + count)
        nth = tl.where(mine, each, nth)
        share = tl.where(mine, program - begin, share)
        begin += count
    module = table + nth * FIELDS
    first = tl.multiple_of(tl.load(module + 3).to(tl.int32), ALIGNED)
    outputs = tl.multiple_of(tl.load(module + 4).to(tl.int32), ALIGNED)
    up, rank = matrices(module, adapter, table_stride, 1)
    output = share * WIDE + tl.arange(0, WIDE)
    w = rows_of(up, 0, rank, output, outputs, RANK, GROUP, KIND)  # while others multiply by `down`
    while tl.atomic_add(table + ENDED, 0, sem="acquire") < AHEAD:
        pass
    of_rows = (row.to(tl.int64) * MODULES + nth) * RANK
    stride = rows * MODULES * RANK
    total = tl.zeros([row.shape[0], WIDE], tl.float32)
    while tl.min(adapter, 0) < NONE:
        v = own(narrow, of_rows, stride, place, adapter, PARTS, RANK, GROUP, KIND)
        total = tl.dot(v, w, total, input_precision="ieee")
        adapter, current = group(place, current, RANK, GROUP)
        up, rank = matrices(module, adapter, table_stride, 1)
        w = rows_of(up, 0, rank, output, outputs, RANK, GROUP, KIND)
    to = out + row.to(tl.int64)[:, None] * OUTPUTS + (first + output)[None, :]
    tl.store(to, total, mask=(row < rows)[:, None] & (output < outputs)[None, :])


@triton.jit(do_not_specialize=["rows", "table_stride"])
def _gemm_with_terms(
    out, narrow, x, weight, places, table, rows, table_stride,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHT_TURN: tl.constexpr, WEIGHT_PARTS: tl.constexpr,
    WEIGHT_STAGES: tl.constexpr, AHEAD: tl.constexpr, BEHIND: tl.constexpr, PARTS: tl.constexpr,
    MODULES: tl.constexpr, INPUTS: tl.constexpr, SHARE: tl.constexpr, RANK: tl.constexpr, DEEP: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, TURN: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr,
    ALIGNED: tl.constexpr, KIND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    TILES: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0) - AHEAD
    if (tile >= 0) & (tile < TILES * WEIGHT_PARTS):
        multiplied_rows(
            out, x, weight, x, x, rows, tile % TILES, tile // TILES, OUTPUTS, INPUTS, ROWS, COLUMNS,
            WEIGHT_TURN, False, False, None, WEIGHT_PARTS, 1, WEIGHT_STAGES, PDL,
        )  # fmt: skip
    else:
        row, place, adapter, current = first_of(places, 0, rows, DEEP, GROUP, ROWS)
        if PDL:
            tl.extra.cuda.gdc_wait()
        nth = tl.atomic_add(table + BEGUN, 1, sem="relaxed").to(tl.int32)
        if nth < AHEAD:
            shrunk(
                narrow, x, table, rows, INPUTS, table_stride, row, place, adapter, current,
                nth // MODULES, nth % MODULES,
                MODULES, INPUTS, SHARE, RANK, DEEP, GROUP, ROWS, TURN, KIND, STAGES, False,
            )  # fmt: skip
        else:
            _terms(
                out + (rows * WEIGHT_PARTS).to(tl.int64) * OUTPUTS, narrow, table, rows, table_stride,
                row, place, adapter, current, nth - AHEAD,
                OUTPUTS, MODULES, PARTS, RANK, GROUP, WIDE, ALIGNED, KIND, AHEAD,
            )  # fmt: skip
        tl.debug_barrier()  # every thread has written
        ended = tl.atomic_add(table + ENDED, 1, sem="release").to(tl.int32)
        if ended == AHEAD + BEHIND - 1:
            tl.store(table + BEGUN, 0)
            tl.store(table + ENDED, 0)


def gemm_with_terms(
    x: Tensor, weight: Tensor, cut: ProductTiling, adapters: RowAdapters, *, pdl: bool = False
) -> Tensor | None:
    """[rows, inputs] -> [parts, rows, outputs] in float32, with the terms as the last part.

    None: not supported, or the product would end before its terms.
    """
    rows, outputs = len(x), len(weight)
    if rows > NARROW or adapters.rank > MOST_RANKS or not x.dtype is weight.dtype is adapters.dtype:
        return None
    if x.itemsize != 2 or sum(adapters.outputs) != outputs or weight.numel() < LONG:
        return None
    programs = triton.cdiv(outputs, cut.outputs) * cut.parts
    beside = AT_ONCE - programs % AT_ONCE  # others that run at the same time
    how, parts = shrinking(x, adapters, max(8, beside))
    ahead, behind = parts * how["MODULES"], sum(triton.cdiv(each, _WIDE) for each in adapters.outputs)
    if ahead + behind > beside if programs <= AT_ONCE else rows > MANY:
        return None
    out = torch.empty(cut.parts + 1, rows, outputs, dtype=torch.float32, device=x.device)
    narrow = torch.empty(parts, rows, how["MODULES"], adapters.rank, dtype=torch.float32, device=x.device)
    _gemm_with_terms[(ahead + programs + behind,)](
        out, narrow, x, weight, adapters.places, adapters.table, rows, adapters.table.stride(0),
        OUTPUTS=outputs, COLUMNS=cut.outputs, WEIGHT_TURN=cut.inputs, WEIGHT_PARTS=cut.parts,
        WEIGHT_STAGES=cut.stages, AHEAD=ahead, BEHIND=behind, PARTS=parts, **how, WIDE=_WIDE,
        ALIGNED=adapters.aligned, KIND=KINDS[adapters.dtype], PDL=pdl, num_warps=cut.warps,
        **launch(pdl, _REGISTERS),
    )  # fmt: skip
    return out
