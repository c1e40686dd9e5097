"""A decoder layer: attention and a feed-forward, and how their terms are added to the stream."""

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from torch import Tensor, nn

from engine.kernels import switches
from engine.models.layers.build import Build
from engine.models.layers.collective import Collective
from engine.models.layers.part import Part, Slot
from engine.models.layers.sharding import WHOLE, Sharding
from engine.models.layers.step import StepContext

Term = Callable[[Part, Tensor], Tensor]  # a part's term, given what it reads; over ranks, their sum


class Block(nn.Module):
    """Each part reads the stream, which it norms, and adds its term."""

    takes_single: ClassVar[bool] = True  # whether one row may have faster paths in its parts
    collective: Collective | None = None  # sums the terms of the ranks that share this block

    def __init__(self, index: int, attention: Part, feed_forward: Part, names: str) -> None:
        """`names`: the prefix of this block's tensors in a checkpoint."""
        super().__init__()
        self.index, self._names = index, names
        self.attention, self.feed_forward = attention, feed_forward

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.attention, self.feed_forward

    @property
    def mixer(self) -> Part | None:
        """The part that mixes tokens, and so may cache something of them."""
        return self.attention

    @property
    def chained(self) -> bool:
        """Whether the GPU launches of its parts can follow each other."""
        return True

    @property
    def term_norms(self) -> tuple[nn.Module | None, ...]:
        """The norms of the parts' terms."""
        return (None,) * len(self.parts)

    def forward(self, x: Tensor, step: StepContext) -> None:
        """Add the two residual terms of this block to x, in place."""

        def term(part: Part, read: Tensor) -> Tensor:
            found = part.forward(read, step)
            return found if self.collective is None else self.collective.sum(found)

        self.add_terms(x, term)

    def add_terms(self, x: Tensor, term: Term) -> None:
        """Add the terms that `term` computes to x, in place."""
        for part in self.parts:
            x += term(part, x)

    def norms(self) -> Mapping[str, nn.Module]:
        """Return the norms outside the parts, by their names in the block's checkpoint."""
        return {}

    def slots(self) -> Iterator[tuple[str, Slot]]:
        for part in self.parts:
            for name, slot in part.slots():
                yield self.named(name), slot
        for name, norm in self.norms().items():
            for kind, tensor in norm.named_parameters():
                yield self.named(f"{name}.{kind}"), Slot(tensor, tuple(tensor.shape))

    def shards(self, ranks: int) -> dict[str, Sharding]:
        cuts = (part.shards(ranks).items() for part in self.parts)
        found = {self.named(name): cut for each in cuts for name, cut in each}
        whole = (
            f"{name}.{kind}" for name, each in self.norms().items() for kind, _ in each.named_parameters()
        )
        return found | {self.named(name): WHOLE for name in whole}

    def named(self, name: str) -> str:
        """Return the checkpoint name of a tensor, given its name in the block."""
        return f"{self._names}.{name}"


class LoneBlock(Block):
    """A block of one part."""

    def __init__(self, index: int, part: Part, names: str, *, mixes: bool) -> None:
        nn.Module.__init__(self)
        self.index, self._names, self.part, self._mixes = index, names, part, mixes

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.part,)

    @property
    def mixer(self) -> Part | None:
        return self.part if self._mixes else None


class ScaledBlock(Block):
    """Each part's term is scaled."""

    def __init__(self, index: int, attention: Part, feed_forward: Part, names: str, *, scale: float) -> None:
        super().__init__(index, attention, feed_forward, names)
        self.scale = scale

    def add_terms(self, x: Tensor, term: Term) -> None:
        for part in self.parts:
            x += term(part, x) * self.scale


class NormedTermBlock(Block):
    """Each part's term is normed before it is added. A part may also norm what it reads."""

    takes_single = False

    def __init__(self, index: int, attention: Part, feed_forward: Part, names: str, build: Build) -> None:
        super().__init__(index, attention, feed_forward, names)
        self._norm_names = build.names["attention.after"], build.names["feed_forward.after"]
        self.attention_norm, self.feed_forward_norm = (build.norm(part.hidden) for part in self.parts)

    def add_terms(self, x: Tensor, term: Term) -> None:
        x += self.attention_norm(term(self.attention, x))
        x += self.feed_forward_norm(term(self.feed_forward, x))

    @property
    def chained(self) -> bool:
        return switches.NORMED_TERMS and all(part.one_term for part in self.parts)

    @property
    def term_norms(self) -> tuple[nn.Module | None, ...]:
        return self.attention_norm, self.feed_forward_norm

    def norms(self) -> Mapping[str, nn.Module]:
        return dict(zip(self._norm_names, (self.attention_norm, self.feed_forward_norm), strict=True))


class ParallelBlock(Block):
    """Both parts read the same norm of the stream."""

    takes_single = False

    @property
    def chained(self) -> bool:
        return False

    def __init__(self, index: int, attention: Part, feed_forward: Part, names: str, build: Build) -> None:
        super().__init__(index, attention, feed_forward, names)
        self._norm_name = build.names["attention.norm"]
        self.norm = build.norm(attention.hidden)

    def add_terms(self, x: Tensor, term: Term) -> None:
        normed = self.norm(x)
        x += term(self.attention, normed)
        x += term(self.feed_forward, normed)

    def norms(self) -> Mapping[str, nn.Module]:
        return {self._norm_name: self.norm}
