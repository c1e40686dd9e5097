"""How many tokens the experts of each layer got."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class ExpertLoad(NamedTuple):
    """Tokens by expert since the start, those of the warm-up included. A token counts once for each expert
    that it chose.
    """

    layers: tuple[int, ...]  # the indices of the layers with experts
    experts: int  # of a layer
    chosen: int  # experts that a token chooses
    counts: np.ndarray  # [layers * experts] int64, layer by layer

    @property
    def table(self) -> np.ndarray:
        """[layers, experts]"""
        return self.counts.reshape(len(self.layers), self.experts)

    def since(self, before: "ExpertLoad") -> "ExpertLoad":
        """What was added after `before`."""
        return self._replace(counts=self.counts - before.counts)

    @classmethod
    def total(cls, parts: Iterable["ExpertLoad | None"]) -> "ExpertLoad | None":
        """The sum over those that are of the first one's model."""
        found = [each for each in parts if each is not None]
        same = [each.counts for each in found if each.like(found[0])]
        return found[0]._replace(counts=np.sum(same, 0)) if found else None

    def like(self, other: "ExpertLoad | None") -> bool:
        """Whether both are of the same model."""
        return other is not None and self[:3] == other[:3]

    def imbalance(self) -> np.ndarray:
        """[layers]: tokens of the busiest expert divided by the mean; 1 is even, 0 says there were none."""
        mean, most = self.table.mean(1), self.table.max(1)
        return np.divide(most, mean, out=np.zeros(len(mean)), where=mean > 0)
