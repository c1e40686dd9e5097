"""What adapters add to the products of a step, beside the base weights.

Each adapter has two thin matrices for a product. They are added to its output, so the base weight may be
stored in any scheme.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.kernels.cpu.many_rows import linear, needs_float32

if TYPE_CHECKING:  # product.py imports Triton, which may be missing without a GPU
    from engine.quant.product import Product

# Up to this many tokens, one product over the ranks of all adapters, masked, is faster than one per adapter.
MASKED_TOKENS = 64

Upload = Callable[[Sequence[np.ndarray]], list[Tensor]]  # copies arrays to the device without waiting
ProductKey = tuple[int, str]  # a layer, and a product's attribute in one of its parts


class LowRank(NamedTuple):
    """x @ down.T @ up is added to a product's output; `up` includes the adapter's scale.

    The parts of a joined product, such as queries, keys and values, each have their own rows of both. The
    rows of `up` of a part are 0 outside its outputs.
    """

    down: Tensor  # [ranks, inputs]
    up: Tensor  # [ranks, outputs]

    def add(self, x: Tensor, out: Tensor, mask: Tensor | None = None) -> None:
        """Add to `out` in place. `mask`: [tokens, ranks], which ranks count for each token."""
        narrow = linear(x.to(self.down.dtype), self.down)
        if mask is not None:
            narrow.mul_(mask)
        if needs_float32(out):
            out.add_(narrow.float() @ self.up.float())
        elif narrow.dtype == out.dtype:
            out.addmm_(narrow, self.up)
        else:
            out.add_(narrow @ self.up)


LowRanks = Mapping[ProductKey, LowRank]  # an adapter


@dataclass(frozen=True, slots=True)
class AdapterStack:
    """Several adapters whose matrices are concatenated along their ranks."""

    numbers: tuple[int, ...]
    products: LowRanks
    owners: Mapping[ProductKey, Tensor]  # [ranks]: the adapter of each; products share equal ones

    @classmethod
    def of(cls, adapters: Mapping[int, LowRanks]) -> "AdapterStack":
        keys = dict.fromkeys(key for each in adapters.values() for key in each)
        shared: dict[tuple[tuple[int, int], ...], Tensor] = {}
        products, owners = {}, {}
        for key in keys:
            found = {number: each[key] for number, each in adapters.items() if key in each}
            ranks = tuple((number, len(each.down)) for number, each in found.items())
            products[key] = _joined(list(found.values()))
            if ranks not in shared:
                owner = [number for number, count in ranks for _ in range(count)]
                shared[ranks] = torch.tensor(owner, device=products[key].down.device)
            owners[key] = shared[ranks]
        return cls(tuple(adapters), products, owners)


def _joined(parts: Sequence[LowRank]) -> LowRank:
    if len(parts) == 1:
        return parts[0]
    return LowRank(torch.cat([each.down for each in parts]), torch.cat([each.up for each in parts]))


class StepAdapters(ABC):
    """The adapters of a step's tokens."""

    __slots__ = ()
    launches: ClassVar[bool] = False  # whether kernels add them, in the chain of a step's launches

    @property
    def layout(self) -> Hashable:
        """What their launches depend on, if they run by kernels."""
        return None

    @abstractmethod
    def add(self, layer: int, product: str, x: Tensor, out: Tensor) -> None:
        """Add to a product of [tokens, inputs], in place, what each token's adapter adds to it."""

    def around(self, layer: int, name: str, product: "Product") -> "Product":
        """Return a product of the chain with what adapters add to it, if kernels add them."""
        raise NotImplementedError


@dataclass(slots=True)
class OneAdapter(StepAdapters):
    """All tokens have the same adapter."""

    products: LowRanks

    def add(self, layer: int, product: str, x: Tensor, out: Tensor) -> None:
        if (found := self.products.get((layer, product))) is not None:
            found.add(x, out)


@dataclass(slots=True)
class MaskedAdapters(StepAdapters):
    """Multiply all tokens by all adapters at once, and keep each token's own ranks."""

    stack: AdapterStack
    tokens: Tensor  # [tokens]: the adapter of each, 0 for none
    masks: dict[int, Tensor] = field(default_factory=dict)  # by the id of the owners' tensor

    def add(self, layer: int, product: str, x: Tensor, out: Tensor) -> None:
        key = (layer, product)
        if (found := self.stack.products.get(key)) is None:
            return
        owners = self.stack.owners[key]
        if (mask := self.masks.get(id(owners))) is None:
            mask = (self.tokens.unsqueeze(1) == owners).to(found.up.dtype)
            self.masks[id(owners)] = mask
        found.add(x, out, mask)


@dataclass(slots=True)
class GroupedAdapters(StepAdapters):
    """Multiply each adapter's tokens on their own."""

    groups: Iterable[tuple[LowRanks, Tensor]]  # an adapter, and the indices of its tokens

    def add(self, layer: int, product: str, x: Tensor, out: Tensor) -> None:
        for products, tokens in self.groups:
            if (found := products.get((layer, product))) is not None:
                mine = out[tokens]
                found.add(x[tokens], mine)
                out.index_copy_(0, tokens, mine)
