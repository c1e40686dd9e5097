"""Matrix products on a CPU over weights in oneDNN's own layout.

Two things are won, both measured in docs/cpu-products.md. The product is up to three times as fast as
`F.linear` at the few rows of a decode step. And a row's result is the same to the last bit whatever rows
stand beside it, as long as there are two: a single row is given company, and so no request's tokens depend
on its batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEWEST = 4  # rows below which oneDNN takes a slower path, and for one row another order of adding

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

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        if rows == 1:
            x = x.expand(FEWEST, -1)  # cheaper than padding, which every step of a lone request would pay
        elif rows < FEWEST:
            x = F.pad(x, (0, 0, 0, FEWEST - rows))
        out: Tensor = _ops._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out if rows >= FEWEST else out[:rows]
