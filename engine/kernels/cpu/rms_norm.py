"""RMS norms on a CPU: of bfloat16 by a compiled kernel where it runs, else with torch's layer norm.

`F.rms_norm` takes nine operations on a CPU. The layer norm of a row concatenated with its negative gives the
same result in three: their mean is zero, and their variance is the row's mean square. Measured in
docs/cpu-products.md.
"""

import torch
from torch import Tensor, nn

from engine.kernels.cpu.compiled import rows


class CpuRmsNorm(nn.Module):
    """Computed in float32 and rounded once, after scaling. A row's bits do not depend on other rows."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps
        self._width = weight.shape[-1]
        # The kernel supports one weight for all rows, so per-head weights are applied after it.
        self._apart = weight if weight.dim() > 1 else None
        self._inside = torch.cat((weight, weight)) if weight.dim() == 1 else None
        self._wide = weight.float()

    def forward(self, x: Tensor) -> Tensor:
        if rows.takes(x) and x.dim() in (2, 3):
            return rows.norm(x, self._wide, self.eps)
        width = self._width
        both = torch.layer_norm(torch.cat((x, -x), -1), (2 * width,), self._inside, None, self.eps)
        out = both.narrow(-1, 0, width)
        return out if self._apart is None else (out * self._apart).to(x.dtype)

    __call__ = forward  # as in PackedLinear
