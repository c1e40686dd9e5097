"""The inputs that all parts of a step share."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.attention.base import Attend
from engine.models.adapters.products import StepAdapters


class ExpertTally(NamedTuple):
    """Counts the tokens that each expert gets, on the device and without waiting for it."""

    counts: Tensor  # [layers, experts] int64
    places: Tensor | None = None  # [tokens]: where each is cached; -1: padding of a graph. None: all count

    def add(self, layer: int, experts: Tensor) -> None:
        """Count a step's choices in a layer, [tokens, chosen]."""
        if self.places is None:
            given = torch.ones_like(experts, dtype=torch.int64)
        else:
            given = (self.places >= 0).long()[:, None].expand(experts.shape)
        self.counts[layer].scatter_add_(0, experts.long().flatten(), given.flatten())


@dataclass
class StepContext:
    """The inputs that all parts of a step read."""

    positions: Tensor  # [tokens]
    rope: Tensor  # the table from rope.py
    attend: Attend
    # The table of sliding layers, if they have their own.
    local_rope: Tensor | None = field(default=None, kw_only=True)
    adapters: StepAdapters | None = field(default=None, kw_only=True)  # None: no token has one
    tally: ExpertTally | None = field(default=None, kw_only=True)  # of experts; None: they are not counted

    @cached_property
    def angles(self) -> tuple[Tensor, Tensor]:
        """The cosines and sines of the positions, in the form rope.rotate takes."""
        return self._angles(self.rope)

    @cached_property
    def local_angles(self) -> tuple[Tensor, Tensor]:
        """The same for sliding layers."""
        return self.angles if self.local_rope is None else self._angles(self.local_rope)

    def _angles(self, table: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = nn.functional.embedding(self.positions, table).unsqueeze(1).chunk(2, dim=-1)
        return cos, sin
