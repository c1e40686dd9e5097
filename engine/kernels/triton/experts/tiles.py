"""Which rows a tile of a product with experts has.

A pair is a row and one of its experts; pair p belongs to row p // chosen. Up to FEW rows an expert's rows fit
in one tile, so a program finds them itself, among all pairs. For more rows `sort_pairs` sorts them by expert
first, in tiles. Grids are as large as any choice of experts may need; programs without rows end at once.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import launch, power

FEW = 32  # rows
CHUNK = 1024  # pairs of an iteration


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Tiles of rows that have an expert in common."""

    rows: int  # of a tile
    count: int  # tiles, at most
    chosen: int  # experts of a row
    experts: int
    pairs: Tensor  # of each tile [tiles, rows], -1: none; unsorted: the experts' ids [rows, chosen]
    owners: Tensor | None = None  # the expert of each tile, -1: none; None: unsorted

    @property
    def constants(self) -> dict[str, int | bool]:
        return {
            "ROWS": self.rows, "CHOSEN": self.chosen, "SLOTS": power(self.chosen), "EXPERTS": self.experts,
            "SORTED": self.owners is not None, "BY_PAIR": self.count < self.experts,
        }  # fmt: skip


@triton.jit
def own_pairs(
    pairs, owners, tile, rows,
    ROWS: tl.constexpr, CHOSEN: tl.constexpr, SLOTS: tl.constexpr, SORTED: tl.constexpr,
    BY_PAIR: tl.constexpr,
):  # fmt: skip
    """The expert of a tile, -1 if it has none, and its pairs [ROWS]; -1: none."""
    n = tl.arange(0, ROWS)
    if SORTED:
        expert = tl.load(owners + tile)
        pair = tl.load(pairs + tile * ROWS + n)
    else:
        slot = tl.arange(0, SLOTS)
        at = n[:, None] * CHOSEN + slot[None, :]
        ids = tl.load(pairs + at, mask=(n < rows)[:, None] & (slot < CHOSEN)[None, :], other=-1)
        expert = tile
        if BY_PAIR:
            expert = tl.load(pairs + tile)
        pair = tl.max(tl.where(ids == expert, at, -1), 1)
        if BY_PAIR:  # the first pair of an expert has all of them
            first = tl.min(tl.min(tl.where(ids == expert, at, ROWS * CHOSEN), 1), 0)
            expert = tl.where(first == tile, expert, -1)
        else:
            expert = tl.where(tl.max(pair, 0) >= 0, expert, -1)
    return expert, pair


@triton.jit(do_not_specialize=["count", "most"])
def _sort_pairs(
    pairs, owners, ids, count, most,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    own = tl.program_id(0)
    expert = tl.arange(0, PADDED)
    n = tl.arange(0, CHUNK)
    counts = tl.zeros([PADDED], tl.int32)
    for begin in tl.range(0, count, CHUNK):
        at = begin + n
        counts += tl.histogram(tl.load(ids + at, mask=at < count, other=0), PADDED)
    none = (count + CHUNK - 1) // CHUNK * CHUNK - count  # behind the pairs, counted for the first expert
    counts -= tl.where(expert == 0, none, 0)
    tiles = (counts + ROWS - 1) // ROWS
    first = tl.sum(tl.where(expert < own, tiles, 0), 0)
    mine = tl.sum(tl.where(expert == own, tiles, 0), 0)
    have = tl.sum(tl.where(expert == own, counts, 0), 0)
    for begin in tl.range(0, mine, CHUNK):
        tl.store(owners + first + begin + n, own, mask=begin + n < mine)
    if own == EXPERTS - 1:
        for begin in tl.range(first + mine, most, CHUNK):
            tl.store(owners + begin + n, -1, mask=begin + n < most)
    left = have + tl.arange(0, ROWS)
    tl.store(pairs + first * ROWS + left, -1, mask=left < mine * ROWS)
    before = first * ROWS
    if have > 0:
        for begin in tl.range(0, count, CHUNK):
            at = begin + n
            hit = (tl.load(ids + at, mask=at < count, other=-1) == own).to(tl.int32)
            place = before + tl.cumsum(hit, 0) - 1
            tl.store(pairs + place, at, mask=hit == 1)
            before += tl.sum(hit, 0)


def sort_pairs(ids: Tensor, experts: int, rows: int, *, pdl: bool = False) -> ExpertTiles:
    """Sort the pairs of `ids` [rows, chosen] by expert, in tiles of `rows`. `pdl` as in Tile."""
    count, chosen = ids.numel(), ids.shape[1]
    most = (count + min(experts, count) * (rows - 1)) // rows
    pairs = torch.empty(most, rows, dtype=torch.int32, device=ids.device)
    owners = torch.empty(most, dtype=torch.int32, device=ids.device)
    _sort_pairs[(experts,)](
        pairs, owners, ids, count, most,
        ROWS=rows, EXPERTS=experts, PADDED=power(experts), CHUNK=CHUNK, PDL=pdl, num_warps=4, **launch(pdl),
    )  # fmt: skip
    return ExpertTiles(rows, most, chosen, experts, pairs, owners)


def unsorted_tiles(ids: Tensor, experts: int, rows: int) -> ExpertTiles:
    """Tiles of up to FEW rows: one for each pair, or if those are more for each expert."""
    assert len(ids) <= rows
    return ExpertTiles(rows, min(experts, ids.numel()), ids.shape[1], experts, ids)


def expert_tiles(
    ids: Tensor, experts: int, *, rows: int = 0, most: int = 128, pdl: bool = False
) -> ExpertTiles:
    """Tiles for these experts' ids [rows, chosen]. `rows`: of a tile; 0: as many as suit, `most` at most."""
    if len(ids) <= (rows or FEW):
        return unsorted_tiles(ids, experts, rows or max(16, power(len(ids))))
    return sort_pairs(ids, experts, rows or min(most, tile_height(ids.numel() / experts)), pdl=pdl)


def tile_height(pairs: float) -> int:
    """Return the rows of a tile, given the pairs of an expert on average."""
    return 16 if pairs <= 10 else 32 if pairs <= 24 else 64 if pairs <= 96 else 128
