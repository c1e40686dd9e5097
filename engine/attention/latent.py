"""Latent attention: the cache holds one latent per token, from which each head's keys and values are made.

A latent is the numbers that keys and values are made from, then the part of the key that positions rotate,
which all heads share. There are two ways to attend, with the same result. Absorbed: queries are projected to
latents, which are then keys and values for all heads, as with a single KV head. Expanded: keys and values are
made from the latents. A query then needs fewer multiplications per token of context, but each token must be
expanded.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LatentProjections:
    """The weights that make each head's keys and values from latents. They are never quantized."""

    weight: Tensor  # [heads, unrotated + value, rank]
    unrotated: int  # numbers of a head's key that are made from a latent

    @property
    def rank(self) -> int:
        return self.weight.shape[2]

    @property
    def value(self) -> int:
        """The numbers of a head's value."""
        return self.weight.shape[1] - self.unrotated

    @property
    def of_keys(self) -> Tensor:
        """[heads, unrotated, rank]"""
        return self.weight[:, : self.unrotated]

    @property
    def of_values(self) -> Tensor:
        """[heads, value, rank]"""
        return self.weight[:, self.unrotated :]

    def exact(self) -> "LatentProjections":
        """Return them in float32, as a CPU multiplies bfloat16 far more slowly."""
        return LatentProjections(self.weight.float(), self.unrotated)

    def part(self, heads: slice) -> "LatentProjections":
        return LatentProjections(self.weight[heads], self.unrotated)

    def expands(self, queries: int) -> bool:
        """Whether these queries need fewer multiplications if their context is expanded."""
        made = self.weight.shape[1]
        return self.rank * made < queries * (2 * self.rank - made)

    def absorbed(self, q: Tensor) -> Tensor:
        """Project queries [tokens, heads, unrotated + rotated] to latents [tokens, heads, rank + rotated]."""
        unrotated, rotated = q.split([self.unrotated, q.shape[2] - self.unrotated], -1)
        compressed = torch.bmm(unrotated.transpose(0, 1), self.of_keys)
        return torch.cat((compressed.transpose(0, 1), rotated), -1)

    def outputs(self, mixed: Tensor) -> Tensor:
        """Make values [tokens, heads, value] from weighted sums of latents [tokens, heads, rank]."""
        return torch.bmm(mixed.transpose(0, 1), self.of_values.transpose(1, 2)).transpose(0, 1)

    def expanded(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Make keys [tokens, heads, unrotated + rotated] and values from latents [tokens, 1, ...]."""
        compressed, rotated = latents.split([self.rank, latents.shape[2] - self.rank], -1)
        made = F.linear(compressed.squeeze(1), self.weight.flatten(0, 1)).unflatten(1, (len(self.weight), -1))
        keys, values = made.split([self.unrotated, self.value], -1)
        return torch.cat((keys, rotated.expand(-1, len(self.weight), -1)), -1), values
