"""Weights and products in the shapes that kernels want, and back."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def padded(grid: Tensor, right: int, below: int) -> Tensor:
    """With zeros behind its columns and its rows. As it is where there are none: F.pad would copy it."""
    return F.pad(grid, (0, right, 0, below)) if right or below else grid


def trimmed(out: Tensor, outputs: int) -> Tensor:
    """The first columns, which others will want to see as heads."""
    return out if out.shape[1] == outputs else out[:, :outputs].contiguous()


def side_by_side(outs: list[Tensor]) -> Tensor:
    """Of products that were taken piece by piece: [rows, outputs]. A single one is not copied."""
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1)
