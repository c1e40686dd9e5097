"""Products with quantized weights on CUDA: few rows by a kernel that reads the numbers as they lie, many by a
weight that is dequantized on the way."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.quantized import bytes_times, nibbles_times
from engine.quant.int4 import Grouped

FEW = 16  # rows


class ByteProduct(nn.Module):
    """int8, a scale for each output."""

    numbers: Tensor
    scale: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """`numbers` [outputs, inputs], `scale` [outputs]."""
        super().__init__()
        self.register_buffer("numbers", numbers.contiguous(), persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        if len(x) <= FEW:
            out = bytes_times(x.contiguous(), self.numbers, self.scale)
        else:
            out = F.linear(x, self.numbers.to(x.dtype) * self.scale.to(x.dtype)[:, None])
        return out if self.bias is None else out.add_(self.bias)

    def dequantized(self) -> Tensor:
        """[outputs, inputs] in float32: what the product is with."""
        return self.numbers.float() * self.scale[:, None]


class NibbleProduct(nn.Module):
    """int4 in groups. A byte holds the numbers of two neighbouring inputs, the first in its low bits."""

    numbers: Tensor
    scale: Tensor
    zero: Tensor
    order: Tensor | None

    def __init__(self, weight: Grouped, bias: Tensor | None, inputs: int) -> None:
        super().__init__()
        self.inputs, self.width, self.group = inputs, weight.numbers.shape[1], weight.group
        pairs = weight.numbers.view(len(weight.numbers), -1, 2)
        self.register_buffer("numbers", pairs[..., 0] | pairs[..., 1] << 4, persistent=False)
        self.register_buffer("scale", weight.scale.half(), persistent=False)
        self.register_buffer("zero", weight.zero.half(), persistent=False)
        self.register_buffer("order", weight.order, persistent=False)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous() if self.order is None else x[:, self.order]
        if self.width > x.shape[1]:
            x = F.pad(x, (0, self.width - x.shape[1]))
        if len(x) <= FEW:
            out = nibbles_times(x, self.numbers, self.scale, self.zero)
        else:
            out = F.linear(x, self._plain().to(x.dtype))
        return out if self.bias is None else out.add_(self.bias)

    def _plain(self) -> Tensor:
        """[outputs, width], in the stored order of inputs."""
        numbers = torch.stack((self.numbers & 15, self.numbers >> 4), 2).view(*self.scale.shape, self.group)
        return ((numbers.float() - self.zero[..., None]) * self.scale[..., None]).flatten(1)

    def dequantized(self) -> Tensor:
        """[outputs, inputs] in float32: what the product is with."""
        weight = self._plain()
        if self.order is not None:
            weight = torch.empty_like(weight).index_copy_(1, self.order, weight)
        return weight[:, : self.inputs]
