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

WORD = 8  # bytes; the size of any tensor's block is a multiple of it
TURN = 1024  # words
SWAPPING = 8  # programs of a swap


@triton.jit
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
    words = [tensor[0].nbytes // WORD for tensor in sources]
    both = (*sources, *targets)
    addresses, strides = [each.data_ptr() for each in both], [_stride(each) for each in both]
    numbers = np.array([*addresses, *words, *strides, *np.ravel(pairs)], np.int64)
    device = next((each.device for each in (*sources, *targets) if each.is_cuda), sources[0].device)
    host = torch.from_numpy(numbers)
    there = host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
    first, all_of_them = 5 * len(sources), len(pairs) * len(sources)
    if programs is None:
        programs = all_of_them if sources[0].device == targets[0].device else SWAPPING
    _move[(min(programs, all_of_them),)](
        there, there[first:], len(pairs), TENSORS=len(sources), TURN=TURN, num_warps=4
    )


def _stride(tensor: Tensor) -> int:
    """Words from one block to the next."""
    return tensor.stride(0) * tensor.element_size() // WORD
