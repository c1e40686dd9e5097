"""Copies a step's inputs to the device and its tokens back, by kernels that access pinned host memory.

The copy engine could do it too, but switching from kernels to that engine and back, twice per step, leaves
the GPU idle for twenty microseconds. Kernels can also be captured in a graph, so the index of the current
host buffer is a number on the device, which each step advances.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

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
    words_read = tl.load(there + begin + at, mask=at < count)
    tl.store(pieces + which * words + begin + at, words_read, mask=at < count)
    tl.debug_barrier()  # every thread has read the current index
    tl.store(turn, (which + 1) % PIECES)


def copy_in(there: Tensor, tables: Tensor, pieces: Tensor, turn: Tensor, news: int) -> None:
    """Copy the current piece of [pieces, words] to `there`.

    It begins with `news` cells of `tables`, indexed across all rows (-1 for none), and the blocks to store
    there.
    """
    words = len(there)
    grid = (triton.cdiv(words, TILE),)
    _copy_in[grid](there, tables, pieces, turn, words, news, TILE=TILE, num_warps=4)


def copy_out(pieces: Tensor, there: Tensor, turn: Tensor, begin: int, count: int) -> None:
    """Copy `count` words, starting at `begin`, back to the current piece, and advance to the next piece."""
    _copy_out[(1,)](
        pieces, there, turn, len(there), begin, count, PIECES=len(pieces), TILE=power(count), num_warps=1
    )
