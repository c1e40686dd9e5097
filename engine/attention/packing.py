"""A token's keys or values of one head as bytes and one scale: how the compressed cache writes and reads.

The scale brings the largest number to the largest that a byte can say. It is rounded before anything is
divided by it, so its own rounding is no error. Only one token and one head count: company changes no bit.
"""

import torch
from torch import Tensor

from engine.kv.store import SCALE, bits

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # the largest number of each type


def pack(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[..., dim] -> the same in `dtype`, and the scales [...]. A NaN makes its scale NaN, and stays so."""
    numbers, most = numbers.float(), MOST[dtype]
    scales = (numbers.abs().amax(-1) / most).to(SCALE)
    steps = numbers / torch.where(scales > 0, scales, 1).float().unsqueeze(-1)
    if dtype is torch.int8:
        steps = (steps + 0.5).floor_()
    return steps.clamp_(-most, most).to(dtype), scales


def unpack(packed: Tensor, scales: Tensor) -> Tensor:
    """In float32."""
    if packed.dtype is torch.int8:
        return packed.float().mul_(scales.unsqueeze(-1))
    # A byte's sign, exponent and fraction are those of a float16 2**8 times as small; torch's own conversion
    # takes three times as long on a CPU.
    halves = bits(packed).view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return halves.view(torch.float16).float().mul_((scales.float() * 256).unsqueeze(-1))
