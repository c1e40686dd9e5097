"""Products as the fused decoder launches them on CUDA, with the operations before and after them.

A product takes a norm that may be half done or rounded to FP8 (`Normed`), and may fuse the next operation:
the activation, the rotation and cache write, or the residual sum with half of the next norm. The defaults run
them one after another; a product overrides what it has a kernel for. A module's method `gpu_product`
(linear.py) returns the product that launches it; a module without that method is called directly.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.triton.gemm.gemm_with_terms import gemm_with_terms
from engine.kernels.triton.gemm.linear_residual_norm import linear_residual_norm, linear_residual_norm_tiling
from engine.kernels.triton.gemm.low_rank import shrink, skinny_gemm_shrink
from engine.kernels.triton.gemm.qkv_rope import qkv_rope, qkv_rope_tiling
from engine.kernels.triton.gemm.row_terms import RowAdapters, RowTerms
from engine.kernels.triton.gemm.skinny_gemm import (
    NARROW,
    ProductTiling,
    gemv,
    skinny_gemm,
    skinny_gemm_tiling,
)
from engine.kernels.triton.gemm.tma_gemm import tma_gemm, tma_gemm_tiling, tma_swiglu_tiling
from engine.kernels.triton.kv.rope_and_cache import rope_and_cache
from engine.kernels.triton.norm.norm import Normed
from engine.kernels.triton.norm.swiglu import rounded_swiglu, swiglu
from engine.kv.store import KVLayer

# The layer's cache; weight and epsilon of the query and key norm; rotary table, positions, cache slots.
Rotation = tuple[KVLayer, Tensor | None, float, Tensor | None, Tensor, Tensor]


class Product(ABC):
    """[rows, inputs] -> [rows, outputs] on a GPU. `pdl`: kernels may start before the previous one ends."""

    single = False  # whether `gemv` computes one row, fused with the operations before and after it
    scales = True  # whether its outputs scale with its inputs: it adds no bias
    unquantized: Tensor | None = None  # the weight if it is, and there is no bias

    @abstractmethod
    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        """[parts, rows, outputs]; the reader adds the parts up."""

    def rounds(self, rows: int) -> bool:
        """Whether it rounds its inputs to FP8. Then `parts_of` takes rows that another kernel has rounded."""
        return False

    def parts_of(self, x: Normed, *, pdl: bool = False) -> Tensor:
        """Like `parts`."""
        return self.parts(x.values, pdl=pdl)

    def parts_and_terms(self, x: Normed, *, pdl: bool = False) -> tuple[Tensor, RowTerms | None]:
        """Return `parts_of`, and what the kernel of a norm that reads it has to add to their sum."""
        return self.parts_of(x, pdl=pdl), None

    def parts_and_shrunk(
        self, x: Tensor, adapters: RowAdapters, *, pdl: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return `parts`, and what adapters make of the same rows (low_rank.py)."""
        narrow = shrink(x, adapters, pdl=pdl)
        return self.parts(x, pdl=pdl), narrow

    def with_terms(self, x: Tensor, adapters: RowAdapters, *, pdl: bool = False) -> Tensor | None:
        """Return `parts` of the product and what adapters add, from one kernel. None: not supported."""
        return None

    def gemv(self, x: Tensor, **around: Any) -> Tensor:
        """Compute one row, with the arguments of skinny_gemm.gemv."""
        raise NotImplementedError

    def uses_tma(self, rows: int) -> bool:
        """Whether its kernels copy tiles by TMA, for which PDL pays off at any number of rows."""
        return False

    def fuses_swiglu(self, rows: int) -> bool:
        """Whether `swiglu` can finish a half-done norm."""
        return False

    def swiglu(self, x: Normed, *, pdl: bool = False) -> Tensor:
        """[rows, width]: silu of the first half of the outputs, times the second."""
        return swiglu(self.parts_of(x, pdl=pdl), x.dtype, pdl=pdl)

    def geglu(self, x: Normed, *, pdl: bool = False) -> Tensor:
        """Like `swiglu` of a complete norm, with gelu by tanh."""
        return swiglu(self.parts_of(x, pdl=pdl), x.dtype, gelu=True, pdl=pdl)

    def rounded_swiglu(self, x: Normed, *, pdl: bool = False) -> Normed:
        """Like `swiglu` of a complete norm, rounded for a product that `rounds`."""
        return rounded_swiglu(self.parts_of(x, pdl=pdl), x.dtype, pdl=pdl)

    def fuses_qkv_rope(self, rows: int, layer: KVLayer) -> bool:
        """Whether `qkv_rope` can finish a half-done norm."""
        return False

    def qkv_rope(self, x: Normed, around: Rotation, *, pdl: bool = False) -> Tensor:
        """Return queries [rows, heads, dim] of a QKV product; keys and values are written to the cache."""
        return rope_and_cache(self.parts_of(x, pdl=pdl), *around, dtype=x.dtype, pdl=pdl)

    def residual_norm(
        self, stream: Tensor, x: Tensor, norm_weight: Tensor, eps: float, *, pdl: bool = False
    ) -> Normed | None:
        """Add the product to the stream, in place, and compute half of its norm. None: not supported."""
        return None


class PlainProduct(Product):
    """With an unquantized weight. `tiles`: whether the GPU has enough shared memory for the TMA kernels."""

    single = True

    def __init__(self, weight: Tensor, *, tiles: bool) -> None:
        self.unquantized, self._weight, self._tiles = weight, weight, tiles

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        rows, weight = len(x), self._weight
        if rows == 1:
            return gemv(x, weight, pdl=pdl).unsqueeze(0)
        if self._tiles and (how := tma_gemm_tiling(rows, weight)):
            return tma_gemm(Normed(x), weight, how, pdl=pdl)
        if cut := skinny_gemm_tiling(rows, weight):
            return skinny_gemm(x, weight, cut, pdl=pdl)
        return F.linear(x, weight).unsqueeze(0)

    def parts_and_shrunk(
        self, x: Tensor, adapters: RowAdapters, *, pdl: bool = False
    ) -> tuple[Tensor, Tensor]:
        cut = self._few(len(x))
        if cut is None:
            return super().parts_and_shrunk(x, adapters, pdl=pdl)
        return skinny_gemm_shrink(x, self._weight, cut, adapters, pdl=pdl)

    def with_terms(self, x: Tensor, adapters: RowAdapters, *, pdl: bool = False) -> Tensor | None:
        cut = self._few(len(x))
        return None if cut is None else gemm_with_terms(x, self._weight, cut, adapters, pdl=pdl)

    def _few(self, rows: int) -> ProductTiling | None:
        """How programs of few rows split it. None: another kernel is faster."""
        if rows > NARROW or (self._tiles and tma_gemm_tiling(rows, self._weight)):
            return None
        return skinny_gemm_tiling(rows, self._weight)

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

    def geglu(self, x: Normed, *, pdl: bool = False) -> Tensor:
        if len(x.values) == 1:
            return gemv(x.values, self._weight, gated=True, gelu=True, pdl=pdl)
        return super().geglu(x, pdl=pdl)

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


class BiasedProduct(Product):
    """With an unquantized weight and a bias: a kernel for one row."""

    single, scales = True, False

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight, self._bias = weight, bias

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if len(x) == 1:
            return self.gemv(x, pdl=pdl).unsqueeze(0)
        return F.linear(x, self._weight, self._bias).unsqueeze(0)

    def gemv(self, x: Tensor, **around: Any) -> Tensor:
        return gemv(x, self._weight, bias=self._bias, **around)


class ModuleProduct(Product):
    """A module that our kernels do not support, at least not fully: runs its own forward."""

    scales = False

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        out: Tensor = self._module(x)
        return out.unsqueeze(0)
