"""Products as the fused chain launches them on CUDA, with what comes before and after each.

A product takes a norm that may be half done (`Normed`), and may itself do what follows it: the activation,
the rotation into the cache, the sum with half of the next norm. The defaults do one thing after another; a
product overrides what it has a kernel for. A module says which product launches it by its method `launched`
(linear.py); one without that method is called as it is.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.triton.gemm.linear_residual_norm import for_joined, joined
from engine.kernels.triton.gemm.products import for_narrow, narrow, vector
from engine.kernels.triton.gemm.qkv_rope import for_turned, turned
from engine.kernels.triton.gemm.tiled import for_gated, for_tiled, tiled
from engine.kernels.triton.kv.rotary import turn
from engine.kernels.triton.norm.norm import Normed
from engine.kernels.triton.norm.swiglu import swiglu
from engine.kv.store import KVLayer

# The cache of a layer; weight and epsilon of the norm of queries and keys; rotary table, positions, places.
Rotation = tuple[KVLayer, Tensor | None, float, Tensor | None, Tensor, Tensor]


class Product(ABC):
    """[rows, inputs] -> [rows, outputs] on a GPU. `early`: kernels start while the one before them ends."""

    single = False  # whether `vector` does one row, with what comes before and after it

    @abstractmethod
    def parts(self, x: Tensor, *, early: bool = False) -> Tensor:
        """[parts, rows, outputs], which whatever reads them adds up."""

    def vector(self, x: Tensor, **around: Any) -> Tensor:
        """One row, as products.vector takes it."""
        raise NotImplementedError

    def in_tiles(self, rows: int) -> bool:
        """Whether its kernels copy whole tiles, which gains by early starts at any number of rows."""
        return False

    def gates(self, rows: int) -> bool:
        """Whether `gated` can finish a norm that is half done."""
        return False

    def gated(self, x: Normed, *, early: bool = False) -> Tensor:
        """[rows, width]: silu of the first half of the outputs, times the second."""
        return swiglu(self.parts(x.values, early=early), x.values.dtype, early=early)

    def rotates(self, rows: int, layer: KVLayer) -> bool:
        """Whether `rotated` can finish a norm that is half done."""
        return False

    def rotated(self, x: Normed, around: Rotation, *, early: bool = False) -> Tensor:
        """Queries [rows, heads, dim] of a product of queries, keys and values; the others go to the cache."""
        return turn(self.parts(x.values, early=early), *around, dtype=x.values.dtype, early=early)

    def added(
        self, stream: Tensor, x: Tensor, norm_weight: Tensor, eps: float, *, early: bool = False
    ) -> Normed | None:
        """Adds the product to the stream, in place, and does half of that one's norm. None: it cannot."""
        return None


class PlainProduct(Product):
    """With a weight as it is. `tiles`: whether programs have room for the kernels that copy whole tiles."""

    single = True

    def __init__(self, weight: Tensor, *, tiles: bool) -> None:
        self._weight, self._tiles = weight, tiles

    def parts(self, x: Tensor, *, early: bool = False) -> Tensor:
        rows, weight = len(x), self._weight
        if rows == 1:
            return vector(x, weight, early=early).unsqueeze(0)
        if self._tiles and (how := for_tiled(rows, weight)):
            return tiled(Normed(x), weight, how, early=early)
        if cut := for_narrow(rows, weight):
            return narrow(x, weight, cut, early=early)
        return F.linear(x, weight).unsqueeze(0)

    def vector(self, x: Tensor, **around: Any) -> Tensor:
        return vector(x, self._weight, **around)

    def in_tiles(self, rows: int) -> bool:
        found = self._tiles and (for_tiled(rows, self._weight) or for_joined(rows, self._weight))
        return bool(found)

    def gates(self, rows: int) -> bool:
        return self._tiles and for_gated(rows, self._weight) is not None

    def gated(self, x: Normed, *, early: bool = False) -> Tensor:
        if self._tiles and (how := for_gated(len(x.values), self._weight)):
            return tiled(x, self._weight, how, gated=True, early=early)[0]
        return super().gated(x, early=early)

    def rotates(self, rows: int, layer: KVLayer) -> bool:
        return self._tiles and for_turned(rows, self._weight, layer) is not None

    def rotated(self, x: Normed, around: Rotation, *, early: bool = False) -> Tensor:
        if self._tiles and (how := for_turned(len(x.values), self._weight, around[0])):
            return turned(x, self._weight, *around, how, early=early)
        return super().rotated(x, around, early=early)

    def added(
        self, stream: Tensor, x: Tensor, norm_weight: Tensor, eps: float, *, early: bool = False
    ) -> Normed | None:
        if self._tiles and (how := for_joined(len(stream), self._weight)):
            return joined(stream, x, self._weight, norm_weight, eps, how, early=early)
        return None


class Called(Product):
    """A module that our kernels do not do, or not all of it: its own forward."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def parts(self, x: Tensor, *, early: bool = False) -> Tensor:
        out: Tensor = self._module(x)
        return out.unsqueeze(0)
