"""A decoder layer: attention, then a feed-forward."""

from collections.abc import Iterator

from torch import Tensor, nn

from engine.models.layers.collective import Collective
from engine.models.layers.part import Part, Slot
from engine.models.layers.sharding import Sharding
from engine.models.layers.step import StepContext


class Block(nn.Module):
    def __init__(
        self,
        index: int,
        attention: Part,
        feed_forward: Part,
        names: str,
        collective: Collective | None = None,
    ) -> None:
        """`names`: the prefix of this block's tensors in a checkpoint.

        `collective`: sums the terms of the ranks that share this block.
        """
        super().__init__()
        self.index, self._names, self._collective = index, names, collective
        self.attention, self.feed_forward = attention, feed_forward

    @property
    def parts(self) -> tuple[Part, Part]:
        return self.attention, self.feed_forward

    def forward(self, x: Tensor, step: StepContext) -> None:
        """Add the two residual terms of this block to x, in place."""
        for part in self.parts:
            term = part.forward(x, step)
            x += term if self._collective is None else self._collective.sum(term)

    def slots(self) -> Iterator[tuple[str, Slot]]:
        for part in self.parts:
            for name, slot in part.slots():
                yield self.named(name), slot

    def shards(self, ranks: int) -> dict[str, Sharding]:
        cuts = (part.shards(ranks).items() for part in self.parts)
        return {self.named(name): cut for each in cuts for name, cut in each}

    def named(self, name: str) -> str:
        """Return the checkpoint name of a tensor, given its name in the block."""
        return f"{self._names}.{name}"
