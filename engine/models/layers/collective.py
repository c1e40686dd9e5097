"""The interface between the ranks that share a model, inside a forward pass."""

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:  # it needs Triton, which may be missing without a GPU
    from engine.kernels.triton.norm.norm import Normed


class Collective(Protocol):
    """Joins the ranks' tensors. All ranks make the same calls in the same order, and get the same bits.

    A model that is not shared has none.
    """

    rank: int
    ranks: int
    recordable: bool  # whether a CUDA graph can contain calls

    def sum(self, term: Tensor) -> Tensor:
        """Return the sum of all ranks' terms, added in rank order."""

    def gather(self, part: Tensor) -> Tensor:
        """Return all ranks' parts, which have one shape, concatenated along the last dimension."""


class GpuCollective(Collective, Protocol):
    """On GPUs: also what a fused step launches."""

    def sum_norm(
        self, x: Tensor, parts: Tensor, weight: Tensor, eps: float, *, rounded: bool, pdl: bool = False
    ) -> "Normed":
        """Add the sum of all ranks' terms to x, in place; return its RMS norm, `rounded` to FP8 or not.

        `parts`: the own term, [parts, rows, width], still to be added up.
        """
