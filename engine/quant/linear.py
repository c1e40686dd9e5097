"""The product with a weight as it is, which a scheme's own product takes the place of."""

from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.quant.base import Scheme

if TYPE_CHECKING:  # it brings Triton, which is there where a GPU is
    from engine.quant.product import Product


class Launcher(Protocol):
    """What a product that is asked how it is launched on a GPU can answer with."""

    def plain(self, weight: Tensor) -> "Product":
        """By the kernels for such a weight, without a bias."""

    def called(self, module: nn.Module) -> "Product":
        """By the module's own forward, between kernels that wait for it in full."""


def parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class Linear(nn.Module):
    """One product. A quantization scheme may put its own in this place."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    @classmethod
    def empty(cls, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype) -> "Linear":
        return cls(parameter(outputs, inputs, dtype=dtype), parameter(outputs, dtype=dtype) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @property
    def quantizes(self) -> bool:
        """Whether a scheme decides how its weight is kept."""
        return True

    def finalized(self, scheme: Scheme) -> nn.Module:
        """What multiplies in its place once the weight is there."""
        return scheme.make(self.weight, self.bias)

    def gpu_product(self, gpu: Launcher) -> "Product":
        return gpu.plain(self.weight) if self.bias is None else gpu.called(self)
