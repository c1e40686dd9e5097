"""Unquantized weights, in the checkpoint's dtype or another."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.kernels.cpu.compiled import product
from engine.kernels.cpu.packed import PackedLinear, why_not
from engine.quant.linear import Linear
from engine.quant.registry import register


def plain(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return a plain product, on a CPU with a weight in the order of its kernel."""
    if weight.device.type == "cpu" and product.why_not(16, weight.dtype) is None:
        return product.bfloat16_panels(weight, bias)
    if why_not(weight) is None:
        return PackedLinear(weight, bias)
    return Linear(parameter_of(weight), None if bias is None else parameter_of(bias))


def has_copy(weight: Tensor) -> bool:
    """Whether a plain product stores its weight in another order, so that a tied head is a copy."""
    compiled = weight.device.type == "cpu" and product.why_not(16, weight.dtype) is None
    return compiled or why_not(weight) is None


def parameter_of(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)


class Cast(nn.Module):
    """A product in another dtype than the model's."""

    def __init__(self, product: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.product, self.dtype = product, dtype

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.product(x.to(self.dtype))
        return out.to(x.dtype)


@dataclass(frozen=True, slots=True)
class Plain:
    """`none` keeps the model's dtype, which is the checkpoint's by default."""

    name: str
    dtype: torch.dtype | None = None
    graphs: bool = True

    @property
    def head(self) -> str:
        return self.name

    @property
    def rounds_activations(self) -> bool:
        return self.dtype in (torch.bfloat16, torch.float16)

    @property
    def kernels(self) -> str:
        compiled = "compiled or " if self.dtype in (None, torch.bfloat16) else ""  # as `plain` does
        return f"plain products, {compiled}with packed weights on a CPU"

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        dtype = self.dtype or dtype
        if device.type == "cpu" and product.why_not(16, dtype) is None:
            return product.nbytes(16, outputs, inputs, 2)
        return outputs * inputs * dtype.itemsize

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        if self.dtype is None or self.dtype is weight.dtype:
            return plain(weight, bias)
        bias = None if bias is None else bias.to(self.dtype)
        return Cast(plain(weight.to(self.dtype), bias), self.dtype)


for _scheme in (
    Plain("none"),
    Plain("fp32", torch.float32),
    Plain("bf16", torch.bfloat16),
    Plain("fp16", torch.float16),
):
    register(_scheme)
