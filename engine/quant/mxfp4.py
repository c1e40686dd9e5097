"""Weights of 4-bit floats with a power of two per 32 inputs (mxfp4), as gpt-oss stores its experts."""

from dataclasses import dataclass

import torch
from torch import Tensor

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the lower three bits; the fourth is the sign
OFFSET = 127  # of the scales' exponents


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """The weights of all experts."""

    blocks: Tensor  # [experts, outputs, inputs / 32, 16] uint8, two numbers each
    scales: Tensor  # [experts, outputs, inputs / 32] uint8

    def dequantized(self) -> Tensor:
        """Return [experts, inputs, outputs]. Exact: bfloat16 has more bits and the same exponents."""
        numbers = torch.tensor((*NUMBERS, *(-each for each in NUMBERS)), dtype=torch.bfloat16)
        numbers = numbers.to(self.blocks.device)
        pairs = torch.stack((self.blocks & 15, self.blocks >> 4), -1).flatten(-2)
        exponents = (self.scales.int() - OFFSET).unsqueeze(-1)
        return torch.ldexp(numbers[pairs.int()], exponents).bfloat16().flatten(2).transpose(1, 2)
