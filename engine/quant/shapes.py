"""Pads weights and products to the shapes kernels need, and back."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def padded(grid: Tensor, right: int, below: int) -> Tensor:
    """Append zero columns and rows. Return the tensor itself if there are none: F.pad would copy it."""
    return F.pad(grid, (0, right, 0, below)) if right or below else grid


def trimmed(out: Tensor, outputs: int) -> Tensor:
    """Return the first columns, contiguous, so that they can be viewed as heads."""
    return out if out.shape[1] == outputs else out[:, :outputs].contiguous()


def side_by_side(outs: list[Tensor]) -> Tensor:
    """Concatenate the pieces of a product to [rows, outputs]. A single piece is not copied."""
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1)
