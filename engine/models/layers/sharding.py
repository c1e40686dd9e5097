"""How checkpoint tensors are split over the ranks that share a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
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

    def spans(self, shape: tuple[int, ...], rank: int, ranks: int) -> list[tuple[slice, ...]]:
        """Return where a rank's share of a tensor of this shape is: its pieces, one below the other."""
        match self.kind:
            case "whole" | "once":
                return [(slice(0, shape[0]),)]
            case "rows" | "columns" | "vocabulary":
                axis = self.axis % len(shape)
                step = -(-shape[axis] // ranks)
                first, end = (min(at * step, shape[axis]) for at in (rank, rank + 1))
                return [(*(slice(0, size) for size in shape[:axis]), slice(first, end))]
            case "heads":
                height = shape[0] // self.heads
                first, count = rank * self.heads // ranks, max(1, self.heads // ranks)
                return [(slice(first * height, (first + count) * height),)]
            case "segments":
                found, top = list[tuple[slice, ...]](), 0
                for size, part in self.parts:
                    for (rows,) in part.spans((size, *shape[1:]), rank, ranks):
                        found.append((slice(top + rows.start, top + rows.stop),))
                    top += size
                return found

    def share(self, tensor: Tensor, rank: int, ranks: int) -> Tensor:
        """Return a rank's share of the tensor."""
        if self.kind == "once" and rank > 0:
            return torch.zeros_like(tensor)
        return joined([tensor[span] for span in self.spans(tuple(tensor.shape), rank, ranks)])

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


def joined(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


@dataclass(frozen=True, slots=True)
class RankShare:
    """One rank's share of a checkpoint."""

    rank: int
    ranks: int
    cuts: Mapping[str, Sharding]  # by the tensors' names

    def spans(self, name: str, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
        return self.cuts[name].spans(shape, self.rank, self.ranks)

    def zero(self, name: str) -> bool:
        """Whether another rank has this tensor, and this one has zeros."""
        return self.cuts[name].kind == "once" and self.rank > 0

    def of(self, name: str, tensor: Tensor) -> Tensor:
        return self.padded(name, self.cuts[name].share(tensor, self.rank, self.ranks), len(tensor))

    def padded(self, name: str, share: Tensor, rows: int) -> Tensor:
        """Pad a share of a vocabulary of `rows` with zeros, so that all shares have one size."""
        if self.cuts[name].kind != "vocabulary":
            return share
        missing = -(-rows // self.ranks) - len(share)
        return F.pad(share, (0, 0) * (share.dim() - 1) + (0, missing)) if missing else share
