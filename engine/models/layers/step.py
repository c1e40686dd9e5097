"""The inputs that all parts of a step share."""

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, nn

from engine.attention.base import Attend


@dataclass
class StepContext:
    """The inputs that all parts of a step read."""

    positions: Tensor  # [tokens]
    rope: Tensor  # the table from rope.py
    attend: Attend
    # The table of sliding layers, if they have their own.
    local_rope: Tensor | None = field(default=None, kw_only=True)

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
