"""The product with an unquantized weight, which a scheme can replace."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn

from engine.kernels import switches
from engine.kernels.cpu.many_rows import linear
from engine.quant.base import Scheme, make_product

if TYPE_CHECKING:  # it needs Triton, which may be missing without a GPU
    from engine.quant.product import Product


_T = TypeVar("_T")


class Launcher(Protocol):
    """The ways a module can be launched on a GPU."""

    tiles: bool  # whether the GPU copies tiles by TMA, and has enough shared memory for them

    def plain(self, weight: Tensor, bias: Tensor | None = None) -> "Product":
        """With the kernels for such a weight."""

    def called(self, module: nn.Module) -> "Product":
        """With the module's own forward, between kernels that fully wait for it."""


def parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class Linear(nn.Module):
    """One product. A quantization scheme can replace it."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    @classmethod
    def empty(cls, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype) -> "Linear":
        return cls(parameter(outputs, inputs, dtype=dtype), parameter(outputs, dtype=dtype) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    @property
    def quantizes(self) -> bool:
        """Whether a scheme determines how its weight is stored."""
        return True

    def finalized(self, scheme: Scheme) -> nn.Module:
        """Return the module that replaces this one once its weight is loaded."""
        return make_product(scheme, self.weight, self.bias)

    def replaced(
        self, parts: Sequence[_T], make: Callable[[Sequence[_T], Tensor | None], nn.Module]
    ) -> nn.Module:
        """Return the module that replaces this one if its outputs are stored as these parts."""
        return make(parts, self.bias)

    def gpu_product(self, gpu: Launcher) -> "Product":
        biased = self.bias is not None and not switches.WITH_BIAS
        return gpu.called(self) if biased else gpu.plain(self.weight, self.bias)
