"""The embedding of a decode step, whose token ids may exist only on the device."""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024


@triton.jit
def _embed(out, table, ids, slots, last_ids, WIDTH: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = at < WIDTH
    id = tl.load(ids + token)
    if id < 0:
        id = tl.load(last_ids + tl.load(slots + token))
    tl.store(out + token * WIDTH + at, tl.load(table + id * WIDTH + at, mask=there), mask=there)


def embed(table: Tensor, ids: Tensor, slots: Tensor, last_ids: Tensor) -> Tensor:
    """[tokens] ids, where -1 means `last_ids[slot]` -> [tokens, width]."""
    width = table.shape[1]
    out = torch.empty(len(ids), width, dtype=table.dtype, device=table.device)
    _embed[(len(ids), triton.cdiv(width, TILE))](
        out, table, ids, slots, last_ids, WIDTH=width, TILE=TILE, num_warps=4
    )
    return out


@triton.jit
def _embed_share(
    out, table, ids, slots, last_ids, first, rows, WIDTH: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    id = tl.load(ids + token)
    if id < 0:
        id = tl.load(last_ids + tl.load(slots + token))
    id -= first
    there = (at < WIDTH) & (id >= 0) & (id < rows)
    tl.store(out + token * WIDTH + at, tl.load(table + id * WIDTH + at, mask=there, other=0), mask=at < WIDTH)


def embed_share(table: Tensor, ids: Tensor, slots: Tensor, last_ids: Tensor, *, first: int) -> Tensor:
    """Like `embed`, with a table of the ids from `first` on; zeros for all others."""
    rows, width = table.shape
    out = torch.empty(len(ids), width, dtype=table.dtype, device=table.device)
    _embed_share[(len(ids), triton.cdiv(width, TILE))](
        out, table, ids, slots, last_ids, first, rows, WIDTH=width, TILE=TILE, num_warps=4
    )
    return out
