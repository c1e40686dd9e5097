"""Packs one head's keys or values of a token as bytes and a scale, as the compressed cache stores them.

The scale maps the largest number to the largest value of a byte. It is rounded before the division, so its
own rounding adds no error. It depends on one token and one head only, so the batch changes no bit.
"""

import torch
from torch import Tensor

from engine.kv.store import SCALE, bits

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # the largest number of each type


def pack(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[..., dim] -> the same in `dtype`, and the scales [...]. A NaN makes its scale NaN and stays NaN."""
    numbers, most = numbers.float(), MOST[dtype]
    scales = (numbers.abs().amax(-1) / most).to(SCALE)
    steps = numbers / torch.where(scales > 0, scales, 1).float().unsqueeze(-1)
    if dtype is torch.int8:
        steps = (steps + 0.5).floor_()
    return steps.clamp_(-most, most).to(dtype), scales


def unpack(packed: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers in float32."""
    if packed.dtype is torch.int8:
        return packed.float().mul_(scales.unsqueeze(-1))
    # A float8's sign, exponent and fraction are those of a float16 that is smaller by 2**8; torch's own
    # conversion takes three times as long on a CPU.
    halves = bits(packed).view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return halves.view(torch.float16).float().mul_((scales.float() * 256).unsqueeze(-1))
