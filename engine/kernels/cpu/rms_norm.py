"""Root mean square norms on a CPU, by way of the one norm that torch has a kernel for there.

`F.rms_norm` is nine operations on a CPU. The layer norm of a row beside its negative is the same number in
three: the mean of the two is zero, and their variance is the row's mean square. Measured in
docs/cpu-products.md.
"""

import torch
from torch import Tensor, nn


class CpuRmsNorm(nn.Module):
    """In float32 until it is scaled, and rounded once. A row's bits do not depend on the rows beside it."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps
        self._width = weight.shape[-1]
        # A weight for each head cannot go into the kernel, which knows one for all rows.
        self._apart = weight if weight.dim() > 1 else None
        self._inside = torch.cat((weight, weight)) if weight.dim() == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        width = self._width
        both = torch.layer_norm(torch.cat((x, -x), -1), (2 * width,), self._inside, None, self.eps)
        out = both.narrow(-1, 0, width)
        return out if self._apart is None else out * self._apart

    __call__ = forward  # as of a product
