"""How many rows oneDNN is asked for: few different numbers, though prompts are of any length.

It makes a kernel for each number of rows that it meets, which takes as long as a product, and keeps half a
megabyte and more for each. Measured in docs/cpu-products.md.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def row_bucket(rows: int) -> int:
    """The least of eight numbers an octave that is not below it."""
    step = max(1, 2 ** (rows - 1).bit_length() // 16)
    return -(-rows // step) * step


def pad_to_bucket(x: Tensor) -> Tensor:
    """With rows of zeros below, where oneDNN multiplies: bfloat16 on a CPU."""
    more = row_bucket(len(x)) - len(x)
    if not more or x.dtype is not torch.bfloat16 or x.device.type != "cpu":
        return x
    return F.pad(x, (0, 0, 0, more))
