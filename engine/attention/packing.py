"""Packs one head's keys or values of a token as bytes and a scale, as the compressed cache stores them.

In `torch.uint8`, a byte holds two numbers of four bits: those of the first half of the head in its low bits.

The scale maps the largest number to the largest value of a byte. It is rounded before the division, so its
own rounding adds no error. It depends on one token and one head only, so the batch changes no bit.
"""

import torch
from torch import Tensor

from engine.kv.store import SCALE, bits

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # the largest number of each type

MIDDLE = 7.5  # four bits are 0 to 15, and mean the numbers from -7.5 to 7.5


def pack(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[..., dim] -> the same in `dtype`, and the scales [...]. A NaN makes its scale NaN and stays NaN."""
    if dtype is torch.uint8:
        return _pack_fours(numbers.float())
    numbers, most = numbers.float(), MOST[dtype]
    scales = (numbers.abs().amax(-1) / most).to(SCALE)
    steps = numbers / torch.where(scales > 0, scales, 1).float().unsqueeze(-1)
    if dtype is torch.int8:
        steps = (steps + 0.5).floor_()
    return steps.clamp_(-most, most).to(dtype), scales


def unpack(packed: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers in float32."""
    if packed.dtype is torch.uint8:
        fours = torch.cat((packed & 15, packed >> 4), -1)
        return fours.float().sub_(MIDDLE).mul_(scales.unsqueeze(-1))
    if packed.dtype is torch.int8:
        return packed.float().mul_(scales.unsqueeze(-1))
    # A float8's sign, exponent and fraction are those of a float16 that is smaller by 2**8; torch's own
    # conversion takes three times as long on a CPU.
    halves = bits(packed).view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return halves.view(torch.float16).float().mul_((scales.float() * 256).unsqueeze(-1))


def _pack_fours(numbers: Tensor) -> tuple[Tensor, Tensor]:
    scales = (numbers.abs().amax(-1) / MIDDLE).to(SCALE)
    steps = numbers / torch.where(scales > 0, scales, 1).float().unsqueeze(-1)
    low, high = (steps + (MIDDLE + 0.5)).floor_().clamp_(0, 15).nan_to_num_(0).to(torch.uint8).chunk(2, -1)
    return low | high << 4, scales
