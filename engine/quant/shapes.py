"""Pads weights and products to the shapes kernels need, and back."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def numbers_at_once(device: torch.device) -> int:
    """How many numbers of a weight are converted at a time, as they are float32 temporarily.

    On a CPU they fit in its cache, which is several times as fast as memory that is new for each piece.
    """
    return 2**18 if device.type == "cpu" else 2**23


def padded(grid: Tensor, right: int, below: int) -> Tensor:
    """Append zero columns and rows. Return the tensor itself if there are none: F.pad would copy it."""
    return F.pad(grid, (0, right, 0, below)) if right or below else grid


def trimmed(out: Tensor, outputs: int) -> Tensor:
    """Return the first columns, contiguous, so that they can be viewed as heads."""
    return out if out.shape[1] == outputs else out[:, :outputs].contiguous()


def side_by_side(outs: list[Tensor]) -> Tensor:
    """Concatenate the pieces of a product to [rows, outputs]. A single piece is not copied."""
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1)
