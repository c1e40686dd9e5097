"""The head for multi-token prediction that some checkpoints have."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from engine.api.cache_spec import CacheSpec
from engine.models.layers.block import Block
from engine.models.layers.build import Build
from engine.models.layers.part import Slot
from engine.models.layers.step import StepContext

_OWN = ("embedding_norm", "hidden_norm", "join", "norm")


class NextTokenHead(nn.Module):
    """One more layer, which reads a token and the hidden state before it, and guesses the token after both.

    The embedding and the output matrix are the model's.
    """

    def __init__(
        self, block: Block, spec: CacheSpec, width: int, build: Build, names: Mapping[str, str]
    ) -> None:
        """`spec`: what the layer caches. `names`: of the tensors, see kinds/names.py."""
        super().__init__()
        self.spec, self._names = spec, {key: name.format(block.index) for key, name in names.items()}
        self.embedding_norm, self.hidden_norm, self.norm = (build.norm(width) for _ in range(3))
        self.join = build.linear(2 * width, width)
        self.block = block

    @property
    def index(self) -> int:
        """The layer's number in the cache."""
        return self.block.index

    @property
    def first(self) -> str:
        """The start of the names of a tensor that every such head has."""
        return f"{self._names['join']}."

    @property
    def copies(self) -> tuple[str, ...]:
        """The starts of the names of tensors that the checkpoint repeats from the model."""
        return tuple(f"{self._names[key]}." for key in ("embed", "head") if key in self._names)

    def slots(self) -> Iterator[tuple[str, Slot]]:
        yield from self.block.slots()
        for key in _OWN:
            for kind, tensor in self.get_submodule(key).named_parameters():
                yield f"{self._names[key]}.{kind}", Slot(tensor, tuple(tensor.shape))

    def forward(self, embedded: Tensor, hidden: Tensor, step: StepContext) -> Tensor:
        """[T, hidden] embeddings and the states before them -> [T, hidden], to guess the next tokens from."""
        x = self._joined(embedded, hidden)
        self.block.forward(x, step)
        out: Tensor = self.norm(x)
        return out

    def cache(self, embedded: Tensor, hidden: Tensor, step: StepContext) -> None:
        """Only cache the tokens. A single layer does not need its own results for that."""
        assert self.block.mixer is not None
        self.block.mixer.forward(self._joined(embedded, hidden), step)

    def _joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        pair = self.embedding_norm(embedded), self.hidden_norm(hidden)
        out: Tensor = self.join(torch.cat(pair, 1))
        return out
