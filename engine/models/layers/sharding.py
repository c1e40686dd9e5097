"""How checkpoint tensors are split over the ranks that share a model."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.api.errors import BadInput

Kind = Literal["rows", "columns", "heads", "vocabulary", "whole", "once", "segments"]


@dataclass(frozen=True, slots=True)
class Sharding:
    """How one tensor is split.

    rows: outputs, in equal shares. columns: inputs, so that a rank's product is a partial sum. heads: rows,
    by head; ranks beyond the number of heads share one. vocabulary: rows; the last shares may be shorter.
    whole: every rank has all of it. once: rank 0 has it and the others have zeros, such as a bias added to a
    sum. segments: rows that are several tensors in one, each with its own sharding.
    """

    kind: Kind
    heads: int = 0
    parts: tuple[tuple[int, "Sharding"], ...] = ()  # segments: their rows
    stacked: bool = False  # rows and columns of all experts in one tensor [experts, inputs, outputs]

    def check(self, name: str, size: int, ranks: int) -> None:
        """Raise if `size` numbers along the split dimension cannot be divided."""
        if self.kind in ("rows", "columns") and size % ranks:
            raise BadInput(f"{name}: {size} {self.kind} cannot be split into {ranks} equal shares")
        if self.kind == "heads" and self.heads % ranks and ranks % self.heads:
            raise BadInput(f"{name}: {self.heads} heads cannot be split over {ranks} ranks")
        for rows, part in self.parts:
            part.check(name, rows, ranks)

    def share(self, tensor: Tensor, rank: int, ranks: int) -> Tensor:
        """Return a rank's share of the tensor."""
        match self.kind:
            case "whole":
                return tensor
            case "once":
                return tensor if rank == 0 else torch.zeros_like(tensor)
            case "columns" | "rows":
                return tensor.chunk(ranks, self.axis)[rank]
            case "vocabulary":
                step = -(-len(tensor) // ranks)
                return tensor[rank * step : (rank + 1) * step]
            case "heads":
                by_head = tensor.unflatten(0, (self.heads, -1))
                first, count = rank * self.heads // ranks, max(1, self.heads // ranks)
                return by_head[first : first + count].flatten(0, 1)
            case "segments":
                pieces = tensor.split([rows for rows, _ in self.parts])
                shares = zip(self.parts, pieces, strict=True)
                return torch.cat([part.share(piece, rank, ranks) for (_, part), piece in shares])

    @property
    def axis(self) -> int:
        """The dimension that is split."""
        if self.kind == "columns":
            return 1
        return -1 if self.stacked else 0

    @property
    def of_bias(self) -> "Sharding":
        """The sharding of the bias of a product whose weight has this sharding."""
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


def segments(*parts: tuple[int, Sharding]) -> Sharding:
    """`parts`: the rows of each, in the whole tensor, and its sharding."""
    return Sharding("segments", parts=parts)
