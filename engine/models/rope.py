"""Rotary positions: one table for the whole model, made once in float32."""

import math

import torch
from torch import Tensor

from engine.api.config import RopeSpec


def rope_table(spec: RopeSpec, dim: int, length: int, dtype: torch.dtype) -> Tensor:
    """[length, 2 * dim]: for each position the cosines, then the sines with the signs that `rotate` wants."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies(spec, dim))
    cos, sin = angles.cos() * spec.attention_factor, angles.sin() * spec.attention_factor
    return torch.cat((cos, cos, -sin, sin), dim=-1).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turns each pair (x[i], x[i + dim/2]) of [T, heads, dim] by its position's angles, in place."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    x.mul_(cos).addcmul_(swapped, sin)


def frequencies(spec: RopeSpec, dim: int) -> Tensor:
    """[dim / 2] radians a token, after the scaling that stretches a trained context to a longer one."""
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
    """Slow turns are stretched, fast ones kept, those between blended."""
    turns = spec.original_context * plain / (2 * math.pi)  # within the trained context
    kept = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    return _blend(plain / spec.factor, plain, kept)


def _yarn(spec: RopeSpec, plain: Tensor, dim: int) -> Tensor:
    """As llama3, but blended along the dimensions rather than along the frequencies."""

    def dimension(turns: float) -> float:
        return dim * math.log(spec.original_context / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    first, last = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first or 0.001  # a range of one dimension still needs a slope
    stretched = (torch.arange(dim // 2, dtype=torch.float32) - first) / width
    return _blend(plain, plain / spec.factor, stretched)


def _blend(start: Tensor, end: Tensor, share: Tensor) -> Tensor:
    share = share.clamp(0, 1)
    return start * (1 - share) + end * share
