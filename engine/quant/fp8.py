"""`fp8`: weights and activations as 8-bit floats, which GPUs from Ada and Hopper on multiply directly."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.quant.fp8_linear import ALIGNED, BlockFp8, ScaledFp8, ScaledWeight, quantized
from engine.quant.registry import register
from engine.quant.shapes import rounded_up

_CAPABILITY = (8, 9)


def held(weight: ScaledWeight, bias: Tensor | None) -> nn.Module:
    """Return a product with this weight."""
    if weight.scale.shape[1] > 1:
        return BlockFp8(weight, bias)
    if weight.numbers.device.type == "cpu":
        return ScaledFp8(weight.numbers, weight.scale, bias)
    # Imported here: it needs Triton, which may be missing without a GPU.
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
            return f"FP8 products need an NVIDIA GPU, but this engine runs on {device.type}"
        if torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"{torch.cuda.get_device_name(device)} does not support FP8 products"
        return None

    def nbytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        outputs, inputs = rounded_up(outputs, ALIGNED), rounded_up(inputs, ALIGNED)
        return outputs * inputs + 4 * outputs

    def make(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        return held(ScaledWeight(*quantized(weight), weight.shape[1]), bias)


register(Fp8())
