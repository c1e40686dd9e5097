"""Products as the fused chain launches them on CUDA, with what comes before and after each.

A product takes a norm that may be half done (`Normed`), and may itself do what follows it: the activation,
the rotation into the cache, the sum with half of the next norm. The defaults do one thing after another; a
product overrides what it has a kernel for. A module says which product launches it by its method
`gpu_product` (linear.py); one without that method is called as it is.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.triton.gemm.linear_residual_norm import linear_residual_norm, linear_residual_norm_tiling
from engine.kernels.triton.gemm.qkv_rope import qkv_rope, qkv_rope_tiling
from engine.kernels.triton.gemm.skinny_gemm import gemv, skinny_gemm, skinny_gemm_tiling
from engine.kernels.triton.gemm.tma_gemm import tma_gemm, tma_gemm_tiling, tma_swiglu_tiling
from engine.kernels.triton.kv.rope_and_cache import rope_and_cache
from engine.kernels.triton.norm.norm import Normed
from engine.kernels.triton.norm.swiglu import swiglu
from engine.kv.store import KVLayer

# The cache of a layer; weight and epsilon of the norm of queries and keys; rotary table, positions, places.
Rotation = tuple[KVLayer, Tensor | None, float, Tensor | None, Tensor, Tensor]


class Product(ABC):
    """[rows, inputs] -> [rows, outputs] on a GPU. `pdl`: kernels start while the one before them ends."""

    single = False  # whether `gemv` does one row, with what comes before and after it

    @abstractmethod
    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        """[parts, rows, outputs], which whatever reads them adds up."""

    def gemv(self, x: Tensor, **around: Any) -> Tensor:
        """One row, as skinny_gemm.gemv takes it."""
        raise NotImplementedError

    def uses_tma(self, rows: int) -> bool:
        """Whether its kernels copy whole tiles, which gains by early starts at any number of rows."""
        return False

    def fuses_swiglu(self, rows: int) -> bool:
        """Whether `swiglu` can finish a norm that is half done."""
        return False

    def swiglu(self, x: Normed, *, pdl: bool = False) -> Tensor:
        """[rows, width]: silu of the first half of the outputs, times the second."""
        return swiglu(self.parts(x.values, pdl=pdl), x.values.dtype, pdl=pdl)

    def fuses_qkv_rope(self, rows: int, layer: KVLayer) -> bool:
        """Whether `qkv_rope` can finish a norm that is half done."""
        return False

    def qkv_rope(self, x: Normed, around: Rotation, *, pdl: bool = False) -> Tensor:
        """Queries [rows, heads, dim] of a product of queries, keys and values; the others go to the cache."""
        return rope_and_cache(self.parts(x.values, pdl=pdl), *around, dtype=x.values.dtype, pdl=pdl)

    def residual_norm(
        self, stream: Tensor, x: Tensor, norm_weight: Tensor, eps: float, *, pdl: bool = False
    ) -> Normed | None:
        """Adds the product to the stream, in place, and does half of that one's norm. None: it cannot."""
        return None


class PlainProduct(Product):
    """With a weight as it is. `tiles`: whether programs have room for the kernels that copy whole tiles."""

    single = True

    def __init__(self, weight: Tensor, *, tiles: bool) -> None:
        self._weight, self._tiles = weight, tiles

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        rows, weight = len(x), self._weight
        if rows == 1:
            return gemv(x, weight, pdl=pdl).unsqueeze(0)
        if self._tiles and (how := tma_gemm_tiling(rows, weight)):
            return tma_gemm(Normed(x), weight, how, pdl=pdl)
        if cut := skinny_gemm_tiling(rows, weight):
            return skinny_gemm(x, weight, cut, pdl=pdl)
        return F.linear(x, weight).unsqueeze(0)

    def gemv(self, x: Tensor, **around: Any) -> Tensor:
        return gemv(x, self._weight, **around)

    def uses_tma(self, rows: int) -> bool:
        found = self._tiles and (
            tma_gemm_tiling(rows, self._weight) or linear_residual_norm_tiling(rows, self._weight)
        )
        return bool(found)

    def fuses_swiglu(self, rows: int) -> bool:
        return self._tiles and tma_swiglu_tiling(rows, self._weight) is not None

    def swiglu(self, x: Normed, *, pdl: bool = False) -> Tensor:
        if self._tiles and (how := tma_swiglu_tiling(len(x.values), self._weight)):
            return tma_gemm(x, self._weight, how, gated=True, pdl=pdl)[0]
        return super().swiglu(x, pdl=pdl)

    def fuses_qkv_rope(self, rows: int, layer: KVLayer) -> bool:
        return self._tiles and qkv_rope_tiling(rows, self._weight, layer) is not None

    def qkv_rope(self, x: Normed, around: Rotation, *, pdl: bool = False) -> Tensor:
        if self._tiles and (how := qkv_rope_tiling(len(x.values), self._weight, around[0])):
            return qkv_rope(x, self._weight, *around, how, pdl=pdl)
        return super().qkv_rope(x, around, pdl=pdl)

    def residual_norm(
        self, stream: Tensor, x: Tensor, norm_weight: Tensor, eps: float, *, pdl: bool = False
    ) -> Normed | None:
        if self._tiles and (how := linear_residual_norm_tiling(len(stream), self._weight)):
            return linear_residual_norm(stream, x, self._weight, norm_weight, eps, how, pdl=pdl)
        return None


class ModuleProduct(Product):
    """A module that our kernels do not do, or not all of it: its own forward."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        out: Tensor = self._module(x)
        return out.unsqueeze(0)
