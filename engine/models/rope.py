"""Rotary positions: one table for the whole model, computed once in float32."""

import math

import torch
from torch import Tensor

from engine.api.config import RopeSpec


def rope_table(spec: RopeSpec, dim: int, length: int, dtype: torch.dtype) -> Tensor:
    """[length, 2 * dim]: the cosines of each position, then the sines with the signs `rotate` expects."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies(spec, dim))
    cos, sin = angles.cos() * spec.attention_factor, angles.sin() * spec.attention_factor
    return torch.cat((cos, cos, -sin, sin), dim=-1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate each pair (x[i], x[i + dim/2]) of [T, heads, dim] by its position's angle, in place."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    x.mul_(cos).addcmul_(swapped, sin)


def frequencies(spec: RopeSpec, dim: int) -> Tensor:
    """[dim / 2] radians per token, after the scaling that extends the trained context."""
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


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Scale low frequencies, keep high ones, and interpolate between."""
    turns = spec.original_context * plain / (2 * math.pi)  # rotations within the trained context
    kept = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
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
