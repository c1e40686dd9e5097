"""Tokens whose attention to the blocks before them is summed up: eviction by attention (kv/eviction.py)."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.kv.store import GROUP

FIELDS = 4  # int32 values of an observer; the last one only aligns it


class Observers(NamedTuple):
    """The last tokens of the blocks that a step fills, on a GPU."""

    # [1 + most, FIELDS] int32: first their number; then of each its index in the step, its row of the block
    # tables, and how many blocks it sees, all of them full.
    listed: Tensor
    totals: Tensor  # [most, groups] float32: what each GROUP of tokens received, over all heads and layers

    @classmethod
    def of(cls, filled: np.ndarray, blocks: int, block_size: int, device: torch.device) -> "Observers":
        """`filled`: see `filled_blocks`, whose rows are the tables'. `blocks`: the most that any sees."""
        numbers = np.zeros((1 + len(filled), FIELDS), np.int32)
        write_observers(numbers, filled, filled[:, 1])
        listed = torch.from_numpy(numbers).to(device, non_blocking=True)
        groups = blocks * groups_in(block_size)
        return cls(listed, torch.zeros(len(filled), groups, dtype=torch.float32, device=device))


def groups_in(block_size: int) -> int:
    return block_size // GROUP


def write_observers(numbers: np.ndarray, filled: np.ndarray, rows: np.ndarray) -> None:
    """Write them as `Observers.listed`. `rows`: of the block tables."""
    numbers[0, 0] = len(filled)
    listed = numbers[1 : 1 + len(filled)]
    listed[:, 0], listed[:, 1], listed[:, 2] = filled[:, 0], rows, filled[:, 2]


def by_block(totals: Tensor, block_size: int) -> Tensor:
    """Totals of groups as those of blocks."""
    return totals.unflatten(1, (-1, groups_in(block_size))).sum(-1)
