"""Rounds row counts up to a few sizes for oneDNN, as prompts have any length.

oneDNN creates a kernel for each row count it sees, which takes as long as a product, and keeps half a
megabyte or more for each. torch keeps a quarter of a megabyte beside it. Both keep 1,024 by default, which
is hundreds of megabytes; here they keep KEPT unless the environment says otherwise, about as many as one
model's products have sizes. Measured in docs/cpu-products.md and docs/server.md.
"""

import os

import torch
import torch.nn.functional as F
from torch import Tensor

KEPT = 256  # kernels
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # read at the first product
    os.environ.setdefault(_cache, str(KEPT))


def row_bucket(rows: int) -> int:
    """Round up to one of eight sizes per power of two."""
    step = max(1, 2 ** (rows - 1).bit_length() // 16)
    return -(-rows // step) * step


def pad_to_bucket(x: Tensor) -> Tensor:
    """Append rows of zeros where oneDNN multiplies: in bfloat16 on a CPU."""
    more = row_bucket(len(x)) - len(x)
    if not more or x.dtype is not torch.bfloat16 or x.device.type != "cpu":
        return x
    return F.pad(x, (0, 0, 0, more))
