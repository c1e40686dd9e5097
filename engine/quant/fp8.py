"""`fp8`: weights and activations in eight bit floats, multiplied as such by Hopper and later."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.quant.fp8_linear import BlockFp8, ScaledFp8, ScaledWeight, quantized
from engine.quant.registry import register

_CAPABILITY = (8, 9)


def held(weight: ScaledWeight, bias: Tensor | None) -> nn.Module:
    """What multiplies with it."""
    if weight.scale.shape[1] > 1:
        return BlockFp8(weight, bias)
    if weight.numbers.device.type == "cpu":
        return ScaledFp8(weight.numbers, weight.scale, bias)
    # Brings Triton, which is there where a GPU is.
    from engine.quant.gpu_products import Fp8Product

    return Fp8Product(weight.numbers, weight.scale, bias)


@dataclass(frozen=True, slots=True)
class Fp8:
    name: str = "fp8"
    rounds_activations: bool = True
    graphs: bool = True
    head: str = "int8"
    kernels: str = "Triton for few rows, torch's scaled product for many"

    def why_not(self, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cuda":
            return (
                f"products of eight bit floats need an NVIDIA GPU, and this engine runs on the {device.type}"
            )
        if torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"{torch.cuda.get_device_name(device)} has no products of eight bit floats"
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype) -> int:
        return outputs * inputs + 4 * outputs

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return held(ScaledWeight(*quantized(weight), weight.shape[1]), bias)


register(Fp8())
