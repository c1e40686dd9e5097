"""Matrix products on a CPU over weights in oneDNN's own layout.

Two things are won, both measured in docs/cpu-products.md. The product is up to three times as fast as
`F.linear` at the few rows of a decode step. And a row's result is the same to the last bit whatever rows
stand beside it, as long as they are neither too few nor, in bfloat16 with AMX, too many: a single row is
given company, many go in blocks, and so no request's tokens depend on its batch. The numbers of rows are few
(`row_bucket`), since for each of them the library keeps a kernel.
"""

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu.row_buckets import row_bucket

FEWEST = 4  # rows below which oneDNN takes a slower path, and for one row another order of adding
# With AMX it also adds in another order beyond so many rows, unless there are few inputs.
TILED, UNSPLIT = 32, 256

_ops = torch.ops.mkldnn


def why_not(weight: Tensor) -> str | None:
    """None: such a weight can be packed here; else the reason."""
    if weight.device.type != "cpu":
        return f"the weight is on {weight.device}"
    if not torch.backends.mkldnn.is_available() or not hasattr(_ops, "_reorder_linear_weight"):
        return "this torch is built without oneDNN"
    if weight.dtype is torch.float32:
        return None
    if weight.dtype is torch.bfloat16:
        return None if _ops._is_mkldnn_bf16_supported() else "this CPU has no instructions for bfloat16"
    return f"{weight.dtype} products have no packed kernel on this CPU"


class PackedLinear(nn.Module):
    """The product with one weight, [outputs, inputs]. The plain weight is not kept."""

    packed: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("packed", _ops._reorder_linear_weight(weight.detach(), FEWEST), persistent=False)
        self.bias = bias
        self._most = _most_rows(weight)
        # Kept as plain values, since a module looks its tensors up slowly.
        self._rest: tuple[Any, ...] = (self.packed, bias, "none", [], "")

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        if rows > self._most:
            return torch.cat([self.forward(block) for block in x.split(self._most)])
        wanted = max(FEWEST, row_bucket(rows))
        if wanted == rows:
            return _product(x, *self._rest)
        # To repeat a lone row is cheaper than padding, which every step of a lone request would pay.
        x = x.expand(FEWEST, -1) if rows == 1 else F.pad(x, (0, 0, 0, wanted - rows))
        return _product(x, *self._rest).narrow(0, 0, rows)

    __call__ = forward  # a step calls a hundred products, and none of them has hooks


def _most_rows(weight: Tensor) -> int:
    """Up to so many rows at once, each is added up in the same order."""
    tiled = weight.dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return TILED if tiled and weight.shape[1] > UNSPLIT else sys.maxsize


def _product(*given: Any) -> Tensor:
    out: Tensor = _ops._linear_pointwise.default(*given)
    return out
