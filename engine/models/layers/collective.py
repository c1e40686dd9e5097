"""The interface between the ranks that share a model, inside a forward pass."""

from typing import Protocol

from torch import Tensor


class Collective(Protocol):
    """Joins the ranks' tensors. All ranks make the same calls in the same order, and get the same bits.

    A model that is not shared has none.
    """

    rank: int
    ranks: int

    def sum(self, term: Tensor) -> Tensor:
        """Return the sum of all ranks' terms, added in rank order."""

    def gather(self, part: Tensor) -> Tensor:
        """Return all ranks' parts, which have one shape, concatenated along the last dimension."""


class GpuCollective(Collective, Protocol):
    """On GPUs: also what a fused step launches."""

    def sum_norm(self, x: Tensor, parts: Tensor, weight: Tensor, eps: float, *, pdl: bool = False) -> Tensor:
        """Add the sum of all ranks' terms to x, in place; return its RMS norm.

        `parts`: the own term, [parts, rows, width], still to be added up.
        """
