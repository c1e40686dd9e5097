"""What the parts of a model read of a step."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from engine.attention.base import Attend


@dataclass
class StepContext:
    """What all parts of a step read."""

    positions: Tensor  # [tokens]
    rope: Tensor  # the table of rope.py
    attend: Attend

    @cached_property
    def angles(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions, as rope.rotate takes them."""
        cos, sin = nn.functional.embedding(self.positions, self.rope).unsqueeze(1).chunk(2, dim=-1)
        return cos, sin
