"""Rotary positions: one table for all layers with the same settings, computed once in float32."""

import math

import torch
from torch import Tensor

from engine.api.config import RopeSpec
from engine.kernels.cpu.compiled import rows


def rope_table(spec: RopeSpec, dim: int, length: int, dtype: torch.dtype) -> Tensor:
    """[length, 2 * rotated dim]: the cosines of each position, then the sines, signed for `rotate`."""
    rotated = int(dim * spec.share)
    if torch.get_default_device().type == "meta":  # there, `arange` may load torch's compiler, for seconds
        return torch.empty(length, 2 * rotated, dtype=dtype)
    frequency = frequencies(spec, rotated, length)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    cos, sin = angles.cos() * spec.attention_factor, angles.sin() * spec.attention_factor
    if spec.interleaved:
        pairs = torch.stack((cos, cos), -1), torch.stack((-sin, sin), -1)
        return torch.cat([each.flatten(1) for each in pairs], dim=-1).to(dtype)
    return torch.cat((cos, cos, -sin, sin), dim=-1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> None:
    """Rotate pairs of [T, heads, dim] by their position's angle, in place.

    A pair is (x[i], x[i + n/2]) of the first n numbers, or (x[2i], x[2i + 1]) if interleaved.
    """
    if not interleaved and rows.takes(x):
        rows.rotate(x, cos, sin)
        return
    x = x[..., : cos.shape[-1]]
    half = x.shape[-1] // 2
    swapped = x.unflatten(-1, (half, 2)).flip(-1).flatten(-2) if interleaved else x.roll(half, dims=-1)
    x.mul_(cos).addcmul_(swapped, sin)


def frequencies(spec: RopeSpec, dim: int, length: int = 0) -> Tensor:
    """[dim / 2] radians per token, after the scaling that extends the trained context.

    `length`: of the longest text; longrope scales differently beyond the original context.
    """
    plain = 1.0 / spec.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    match spec.kind:
        case "default":
            return plain
        case "linear":
            return plain / spec.factor
        case "llama3":
            return _llama3(spec, plain)
        case "yarn":
            return _yarn(spec, plain, dim)
        case "longrope":
            factors = spec.long_factors if length > spec.original_context else spec.short_factors
            return plain / torch.tensor(factors)


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Scale low frequencies, keep high ones, and interpolate between."""
    turns = spec.original_context * plain / (2 * math.pi)  # rotations within the trained context
    width = spec.high_freq_factor - spec.low_freq_factor or 1e-12  # avoids division by zero
    kept = (turns - spec.low_freq_factor) / width
    return _blend(plain / spec.factor, plain, kept)


def _yarn(spec: RopeSpec, plain: Tensor, dim: int) -> Tensor:
    """Like llama3, but interpolated over dimensions instead of frequencies."""

    def dimension(turns: float) -> float:
        return dim * math.log(spec.original_context / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    first, last = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001  # avoids division by zero for a range of one dimension
    stretched = (torch.arange(dim // 2, dtype=torch.float32) - first) / width
    return _blend(plain, plain / spec.factor, stretched)


def _blend(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    share = share.clamp(0, 1)
    return start * (1 - share) + end * share
