"""A form's numbers to the device and its tokens back, by kernels that reach into pinned host memory.

A copy would do it too, but it is another unit's work: a GPU that goes from its kernels to that unit and
back, twice a step, does nothing for twenty microseconds. Kernels can be recorded as well, and so which of the
pieces on the host is in turn is a number on the device, one further with every step.
"""
# mypy: disable-error-code=no-untyped-def
# Triton reads a kernel's annotations as its own, so only what is a constant to it has one.

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launch import power

TILE = 512  # words of 8 bytes


@triton.jit
def _copy_in(there, tables, pieces, turn, words, news, TILE: tl.constexpr):
    piece = pieces + tl.load(turn) * words
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(there + at, tl.load(piece + at, mask=at < words), mask=at < words)
    if tl.program_id(0) == 0:
        for begin in range(0, news, TILE):
            new = begin + tl.arange(0, TILE)
            cell = tl.load(piece + new, mask=new < news, other=-1)
            block = tl.load(piece + news + new, mask=new < news, other=0)
            tl.store(tables + cell, block.to(tables.dtype.element_ty), mask=cell >= 0)


@triton.jit
def _copy_out(pieces, there, turn, words, begin, count, PIECES: tl.constexpr, TILE: tl.constexpr):
    which = tl.load(turn)
    at = tl.arange(0, TILE)
    told = tl.load(there + begin + at, mask=at < count)
    tl.store(pieces + which * words + begin + at, told, mask=at < count)
    tl.debug_barrier()  # all of the program has read whose turn it is
    tl.store(turn, (which + 1) % PIECES)


def copy_in(there: Tensor, tables: Tensor, pieces: Tensor, turn: Tensor, news: int) -> None:
    """The piece in turn, of [pieces, words], to `there`.

    It begins with `news` cells of `tables`, counted through all rows, -1 for none, and as many blocks for
    them.
    """
    words = len(there)
    grid = (triton.cdiv(words, TILE),)
    _copy_in[grid](there, tables, pieces, turn, words, news, TILE=TILE, num_warps=4)


def copy_out(pieces: Tensor, there: Tensor, turn: Tensor, begin: int, count: int) -> None:
    """The words from `begin` on, as many as `count`, back to the piece in turn; then it is the next one's."""
    _copy_out[(1,)](
        pieces, there, turn, len(there), begin, count, PIECES=len(pieces), TILE=power(count), num_warps=1
    )
