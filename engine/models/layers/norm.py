"""The RMS norm of the Llama family."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.cpu.rms_norm import CpuRmsNorm
from engine.quant.linear import parameter

RmsNorm = tuple[Tensor, float]  # weight and epsilon


class Norm(nn.Module):
    """RMS norm in float32; the weight is applied after rounding, as the models were trained."""

    def __init__(self, *shape: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter(*shape, dtype=dtype)
        self.axis = shape[-1:]
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.axis, None, self.eps).mul_(self.weight)

    def finalized(self) -> nn.Module:
        """Return the module that replaces this one once its weight is loaded: on a CPU, a single kernel."""
        return CpuRmsNorm(self.weight, self.eps) if self.weight.device.type == "cpu" else self

    def rms_norm(self) -> RmsNorm | None:
        """Return weight and epsilon for kernels that include the norm. None: `forward` must be called."""
        return self.weight, self.eps
