"""The inputs that all parts of a step share."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from engine.attention.base import Attend


@dataclass
class StepContext:
    """The inputs that all parts of a step read."""

    positions: Tensor  # [tokens]
    rope: Tensor  # the table from rope.py
    attend: Attend

    @cached_property
    def angles(self) -> tuple[Tensor, Tensor]:
        """The cosines and sines of the positions, in the form rope.rotate takes."""
        cos, sin = nn.functional.embedding(self.positions, self.rope).unsqueeze(1).chunk(2, dim=-1)
        return cos, sin
