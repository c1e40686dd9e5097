"""The norms of the built-in families."""

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


class OffsetNorm(Norm):
    """RMS norm whose scale is 1 + weight, rounded once, as in Gemma."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.axis, None, self.eps).mul_(self.weight.float() + 1).to(x.dtype)

    def finalized(self) -> nn.Module:
        return self.widened() if self.weight.device.type != "cpu" else CpuRmsNorm(self._scale, self.eps)

    def widened(self) -> "WideNorm":
        return WideNorm(self._scale, self.eps)

    @property
    def _scale(self) -> nn.Parameter:
        return nn.Parameter(self.weight.float() + 1, requires_grad=False)

    def rms_norm(self) -> RmsNorm | None:
        return None


class WideNorm(nn.Module):
    """RMS norm with a weight in float32, which is applied before the result is rounded."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], None, self.eps).mul_(self.weight).to(x.dtype)

    def rms_norm(self) -> RmsNorm | None:
        return self.weight, self.eps


class LayerNorm(Norm):
    """A norm that also subtracts the mean, in float32. With weights per head, all heads are normed apart."""

    def __init__(self, *shape: int, eps: float, dtype: torch.dtype, bias: bool = False) -> None:
        super().__init__(*shape, eps=eps, dtype=dtype)
        self.bias = parameter(*shape, dtype=dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return F.layer_norm(x, self.axis, self.weight, self.bias, self.eps)
        return F.layer_norm(x.float(), self.axis, None, None, self.eps).mul_(self.weight).to(x.dtype)

    def finalized(self) -> nn.Module:
        return self

    def rms_norm(self) -> RmsNorm | None:
        return None
