"""Moves whole blocks of all layers in one launch: copies, and swaps to host memory.

Pinned host memory is in the GPU's address space, so the kernel could also swap. The benchmark gpu_tiers
compares that with the copy engine, for which this kernel only gathers and spreads blocks. The host does not
wait, and later launches find the blocks moved.
"""
# mypy: disable-error-code=no-untyped-def
# Triton interprets a kernel's annotations itself, so only constexpr parameters are annotated.

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.places import Places

TURN = 1024  # words
SWAPPING = 8  # programs of a swap


@triton.jit(do_not_specialize=["count"])
def _move(table, pairs, count, TENSORS: tl.constexpr, TURN: tl.constexpr):
    for item in range(tl.program_id(0), count * TENSORS, tl.num_programs(0)):
        pair = item // TENSORS
        tensor = item % TENSORS
        words = tl.load(table + 2 * TENSORS + tensor)
        taken = tl.load(pairs + 2 * pair) * tl.load(table + 3 * TENSORS + tensor)
        put = tl.load(pairs + 2 * pair + 1) * tl.load(table + 4 * TENSORS + tensor)
        source = tl.load(table + tensor).to(tl.pointer_type(tl.int64)) + taken
        target = tl.load(table + TENSORS + tensor).to(tl.pointer_type(tl.int64)) + put
        for begin in range(0, words, TURN):
            at = begin + tl.arange(0, TURN)
            tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)


def move(
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    pairs: Sequence[tuple[int, int]],
    programs: int | None = None,
) -> None:
    """Copy block `a` of each source to block `b` of the corresponding target, for each of the pairs (a, b).

    Tensors are [blocks, ...], each block without gaps; no block is both read and written. `programs`: at most
    so many run at once. The reference is engine.kv.store.move_blocks.
    """
    device = next((each.device for each in (*sources, *targets) if each.is_cuda), sources[0].device)
    if programs is None:
        programs = len(pairs) * len(sources) if sources[0].device == targets[0].device else SWAPPING
    _Moves(Places.of(sources), Places.of(targets), np.array(pairs, np.int64), device)(0, len(pairs), programs)


class RowStaging:
    """Moves blocks to rows of bytes on the same device, or back, a piece of a list of blocks at a time.

    What all pieces need is uploaded once, because the host has other things to do.
    The reference is engine.execution.cache_blocks.PlainStaging.
    """

    def __init__(self, tensors: Sequence[Tensor], rows: Tensor, blocks: Sequence[int], *, out: bool) -> None:
        """`out`: from the blocks to the rows. Each piece begins at the first row."""
        inner = Places.of(tensors)
        sides, both = (inner, inner.in_rows(rows)), np.empty((len(blocks), 2), np.int64)
        both[:, int(not out)] = blocks
        both[:, int(out)] = np.arange(len(blocks)) % len(rows)
        self._moves = _Moves(*(sides if out else sides[::-1]), both, rows.device)

    def move(self, first: int, count: int) -> None:
        self._moves(first, count)


class _Moves:
    """Launches of moves between two places, for parts of a list of pairs."""

    def __init__(self, source: Places, target: Places, pairs: np.ndarray, device: torch.device) -> None:
        self._tensors = len(source.words)
        table = (source.addresses, target.addresses, source.words, source.strides, target.strides)
        host = torch.from_numpy(np.concatenate([*table, pairs.ravel()]))
        self._there = host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host

    def __call__(self, first: int, count: int, programs: int | None = None) -> None:
        pairs, items = self._there[5 * self._tensors + 2 * first :], count * self._tensors
        grid = (min(programs or items, items),)
        _move[grid](self._there, pairs, count, TENSORS=self._tensors, TURN=TURN, num_warps=4)
