"""Products of many rows on a CPU without instructions for bfloat16, where no compiled product has the weight.

Torch multiplies bfloat16 there without vector instructions. Converting the weight to float32 for each product
is 5 to 8 times as fast for a prompt (docs/cpu-products.md), and no copy of the weight is kept.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

FEWEST = 64  # rows; it pays from 8 on, but a row of a decode step should have the same bits in most batches
PIECE = 2**22  # numbers of a weight that are converted at a time


@cache
def multiplies_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def needs_float32(x: Tensor) -> bool:
    """Whether a product of these many rows is far faster in float32."""
    return x.dtype is torch.bfloat16 and x.device.type == "cpu" and not multiplies_bfloat16()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Like `F.linear`, which it calls for few rows and where that is fast."""
    if len(x) < FEWEST or not needs_float32(x):
        return F.linear(x, weight, bias)
    return in_float32(x, weight, bias)


def in_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with the weight in float32, converted piece by piece."""
    rows, out = x.float(), x.new_empty(len(x), len(weight))
    outputs = max(1, PIECE // weight.shape[1])
    for at in range(0, len(weight), outputs):
        part = slice(at, at + outputs)
        added = None if bias is None else bias[part].float()
        out[:, part] = F.linear(rows, weight[part].float(), added)
    return out
