"""How a tensor of a checkpoint is cut over ranks that share a model."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.api.errors import BadInput

Kind = Literal["rows", "columns", "heads", "vocabulary", "whole", "once"]


@dataclass(frozen=True, slots=True)
class Sharding:
    """rows: outputs, in equal shares. columns: inputs, so that a rank's product is a part of a sum.
    heads: rows by `heads`, where ranks beyond their number share one. vocabulary: rows, the last shares may
    be shorter. whole: every rank has it. once: rank 0 has it and the others zeros, as of a bias that is added
    to a sum.
    """

    kind: Kind
    heads: int = 0

    def check(self, name: str, size: int, ranks: int) -> None:
        """Raises where `size` numbers along the cut cannot be shared out."""
        if self.kind in ("rows", "columns") and size % ranks:
            raise BadInput(f"{name}: {size} {self.kind} cannot be cut into {ranks} equal shares")
        if self.kind == "heads" and self.heads % ranks and ranks % self.heads:
            raise BadInput(f"{name}: {self.heads} heads cannot be shared by {ranks} ranks")

    def share(self, tensor: Tensor, rank: int, ranks: int) -> Tensor:
        """What a rank has of it."""
        match self.kind:
            case "whole":
                return tensor
            case "once":
                return tensor if rank == 0 else torch.zeros_like(tensor)
            case "columns":
                return tensor.chunk(ranks, 1)[rank]
            case "rows":
                return tensor.chunk(ranks)[rank]
            case "vocabulary":
                step = -(-len(tensor) // ranks)
                return tensor[rank * step : (rank + 1) * step]
            case "heads":
                by_head = tensor.unflatten(0, (self.heads, -1))
                first, count = rank * self.heads // ranks, max(1, self.heads // ranks)
                return by_head[first : first + count].flatten(0, 1)

    @property
    def of_bias(self) -> "Sharding":
        """How the bias is cut of a product whose weight is cut so."""
        return ONCE if self.kind == "columns" else self


ROWS, COLUMNS, VOCABULARY, WHOLE = (
    Sharding("rows"),
    Sharding("columns"),
    Sharding("vocabulary"),
    Sharding("whole"),
)
ONCE = Sharding("once")


def by_head(heads: int) -> Sharding:
    return Sharding("heads", heads)
