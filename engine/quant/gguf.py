"""The weights of GGUF files: blocks of integers, with a scale and an offset for each group of a block.

Reference: ggml, `dequantize_row_*` in ggml-quants.c.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.gguf.kinds import READABLE
from engine.quant.grouped import GroupedWeight
from engine.quant.shapes import numbers_at_once

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Groups(NamedTuple):
    """The numbers of some blocks: numbers * scale + offset."""

    numbers: Tensor  # [blocks, groups, numbers of a group], integers
    scale: Tensor  # [blocks, groups] float32
    offset: Tensor  # the same

    def values(self) -> Tensor:
        return self.numbers.float().mul_(self.scale[..., None]).add_(self.offset[..., None])


def dequantized(kind: str, raw: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, bytes of a row] -> [rows, numbers]. Plain floats keep their own dtype."""
    if kind in FLOATS:
        return raw.view(FLOATS[kind])
    blocks = READABLE[kind]
    flat = raw.reshape(-1, blocks.nbytes)
    out = torch.empty(len(flat), blocks.numbers, dtype=dtype, device=raw.device)
    size = numbers_at_once(raw.device) // blocks.numbers
    for part, into in zip(flat.split(size), out.split(size), strict=True):
        into.copy_(_READERS[kind](part).values().flatten(1))
    return out.view(len(raw), -1)


def grouped(kind: str, raw: Tensor) -> GroupedWeight:
    """Return a weight of four bits [rows, bytes of a row] with its own numbers."""
    found = _READERS[kind](raw.reshape(-1, READABLE[kind].nbytes))
    scale, offset = (each.view(len(raw), -1) for each in (found.scale, found.offset))
    numbers = found.numbers.view(*scale.shape, -1)
    if (none := scale == 0).any():  # only the offset is left, which our form has as a multiple of the scale
        numbers, scale = numbers.masked_fill(none[..., None], 0), scale.masked_fill(none, 1)
    return GroupedWeight(numbers.flatten(1).contiguous(), scale, -offset / scale)


def _half(raw: Tensor, at: int) -> Tensor:
    """The float16 at this byte of each block, [blocks, 1] float32."""
    return raw[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """[..., n] -> [..., 2, n]: the lower four bits of all bytes, then the upper ones."""
    return torch.stack((raw & 15, raw >> 4), -2)


def _bits(raw: Tensor) -> Tensor:
    """[blocks, n] -> [blocks, 8 n]: the bits of each byte, lowest first."""
    return (raw[..., None] >> torch.arange(8, dtype=torch.uint8, device=raw.device) & 1).flatten(1)


def _q4_0(raw: Tensor) -> Groups:
    scale = _half(raw, 0)
    return Groups(_nibbles(raw[:, 2:]).view(-1, 1, 32), scale, -8 * scale)


def _q4_1(raw: Tensor) -> Groups:
    return Groups(_nibbles(raw[:, 4:]).view(-1, 1, 32), _half(raw, 0), _half(raw, 2))


def _q5_0(raw: Tensor) -> Groups:
    scale = _half(raw, 0)
    return Groups(_five(raw[:, 2:6], raw[:, 6:]), scale, -16 * scale)


def _q5_1(raw: Tensor) -> Groups:
    return Groups(_five(raw[:, 4:8], raw[:, 8:]), _half(raw, 0), _half(raw, 2))


def _five(high: Tensor, low: Tensor) -> Tensor:
    return (_nibbles(low).flatten(1) | _bits(high) << 4).unsqueeze(1)


def _q8_0(raw: Tensor) -> Groups:
    scale = _half(raw, 0)
    return Groups(raw[:, None, 2:].contiguous().view(torch.int8), scale, torch.zeros_like(scale))


def _k_scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and offsets of the eight groups of Q4_K and Q5_K, packed into 6 bits each."""
    low, middle, high = raw[:, 4:16].split(4, 1)
    scales = torch.cat((low & 63, high & 15 | low >> 6 << 4), 1)
    offsets = torch.cat((middle & 63, high >> 4 | middle >> 6 << 4), 1)
    return _half(raw, 0) * scales, -(_half(raw, 2) * offsets)


def _q4_k(raw: Tensor) -> Groups:
    return Groups(_nibbles(raw[:, 16:].view(-1, 4, 32)).flatten(1, 2), *_k_scales(raw))


def _q5_k(raw: Tensor) -> Groups:
    low = _nibbles(raw[:, 48:].view(-1, 4, 32)).flatten(1, 2)
    fifth = raw[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8, device=raw.device)[:, None] & 1
    return Groups(low | fifth << 4, *_k_scales(raw))


def _q6_k(raw: Tensor) -> Groups:
    low = _nibbles(raw[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=raw.device)[:, None]
    high = raw[:, 128:192].view(-1, 2, 1, 32) >> shifts & 3
    scale = _half(raw, 208) * raw[:, 192:208].contiguous().view(torch.int8)
    return Groups((low | high << 4).view(-1, 16, 16), scale, -32 * scale)


_READERS: dict[str, Callable[[Tensor], Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
