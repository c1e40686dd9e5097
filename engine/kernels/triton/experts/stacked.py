"""The weights of all experts in one tensor of each kind, and their products on CUDA.

The tensors are shared with the products of the single experts, which multiply where there is no kernel.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from engine.kernels.triton.experts.gemm import Gate, experts_gemm, experts_gemm_tiling
from engine.kernels.triton.experts.gemv import experts_down_gemv, experts_gate_up_gemv
from engine.kernels.triton.experts.int4 import experts_int4, experts_int4_tiling
from engine.kernels.triton.experts.tiles import ExpertTiles
from engine.kernels.triton.gemm.int4_gemm import TALL
from engine.kernels.triton.gemm.quantize_fp8 import quantize_fp8
from engine.kernels.triton.gemm.tma_gemm import Tiling


class StackedExperts(ABC):
    """Products of rows with the weights of their experts."""

    tallest: ClassVar[int] = 128  # most rows of a tile
    single: ClassVar[bool] = False  # whether one row has kernels of its own, the two methods below

    @property
    def unquantized(self) -> tuple[Tensor, Tensor | None] | None:
        """The weight and the bias, if the weight is."""
        return None

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether it multiplies rows of this dtype."""
        return True

    @abstractmethod
    def multiplied(
        self, x: Tensor, tiles: ExpertTiles, rows: int, *, how: Tiling | None = None, **around: Any
    ) -> Tensor:
        """Multiply with the arguments of experts_gemm. `how`: None for the usual tiling."""

    def gate_up_gemv(self, x: Tensor, ids: Tensor, gate: Gate, **how: Any) -> Tensor:
        """Multiply one row with its experts' weights, [1, inputs] -> [chosen, width]."""
        raise NotImplementedError

    def down_gemv(self, x: Tensor, ids: Tensor, pair_weights: Tensor, **how: Any) -> Tensor:
        """[chosen, inputs] -> [1, outputs], with the arguments of experts_down_gemv."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PlainExperts(StackedExperts):
    single: ClassVar[bool] = True

    weight: Tensor  # [experts, outputs, inputs]
    bias: Tensor | None = None  # [experts, outputs]

    @property
    def unquantized(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias

    def multiplied(
        self, x: Tensor, tiles: ExpertTiles, rows: int, *, how: Tiling | None = None, **around: Any
    ) -> Tensor:
        how = how or experts_gemm_tiling(tiles.rows, self.weight, gated=around.get("gate") is not None)
        return experts_gemm(x, self.weight, tiles, how, rows, bias=self.bias, **around)

    def gate_up_gemv(self, x: Tensor, ids: Tensor, gate: Gate, **how: Any) -> Tensor:
        return experts_gate_up_gemv(x, self.weight, ids, gate, bias=self.bias, **how)

    def down_gemv(self, x: Tensor, ids: Tensor, pair_weights: Tensor, **how: Any) -> Tensor:
        return experts_down_gemv(x, self.weight, ids, pair_weights, bias=self.bias, **how)


@dataclass(frozen=True, slots=True)
class Int8Experts(StackedExperts):
    single: ClassVar[bool] = True

    numbers: Tensor  # [experts, outputs, inputs], offset by 128
    scale: Tensor  # [experts, outputs]
    bias: Tensor | None = None

    def multiplied(
        self, x: Tensor, tiles: ExpertTiles, rows: int, *, how: Tiling | None = None, **around: Any
    ) -> Tensor:
        how = how or experts_gemm_tiling(tiles.rows, self.numbers, gated=around.get("gate") is not None)
        return experts_gemm(x, self.numbers, tiles, how, rows, self.scale, bias=self.bias, **around)

    def gate_up_gemv(self, x: Tensor, ids: Tensor, gate: Gate, **how: Any) -> Tensor:
        return experts_gate_up_gemv(x, self.numbers, ids, gate, self.scale, bias=self.bias, **how)

    def down_gemv(self, x: Tensor, ids: Tensor, pair_weights: Tensor, **how: Any) -> Tensor:
        return experts_down_gemv(x, self.numbers, ids, pair_weights, self.scale, bias=self.bias, **how)


@dataclass(frozen=True, slots=True)
class Fp8Experts(StackedExperts):
    """Rounds each row of activations by its own maximum, like ScaledFp8."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None

    def multiplied(
        self, x: Tensor, tiles: ExpertTiles, rows: int, *, how: Tiling | None = None, **around: Any
    ) -> Tensor:
        how = how or experts_gemm_tiling(tiles.rows, self.weight, gated=around.get("gate") is not None)
        numbers, steps = quantize_fp8(x, self.weight.shape[2], pdl=around.get("pdl", False))
        return experts_gemm(
            numbers, self.weight, tiles, how, rows, self.scale, steps, dtype=x.dtype, bias=self.bias, **around
        )


@dataclass(frozen=True, slots=True)
class Int4Experts(StackedExperts):
    tallest: ClassVar[int] = TALL

    words: Tensor  # [experts, tiles, units, 64, 32], see int4_gemm.py
    grid: Tensor  # [experts, groups, outputs]
    outputs: int
    kind: torch.dtype
    bias: Tensor | None = None
    floats: bool = False  # whether the numbers are floats
    factor: Tensor | None = None  # [experts, outputs], of floats whose grid holds bytes

    def takes(self, dtype: torch.dtype) -> bool:
        return dtype is self.kind

    def multiplied(
        self, x: Tensor, tiles: ExpertTiles, rows: int, *, how: Tiling | None = None, **around: Any
    ) -> Tensor:
        how = how or experts_int4_tiling(tiles.rows, self.words, gated=around.get("gate") is not None)
        return experts_int4(
            x,
            self.words,
            self.grid,
            self.outputs,
            tiles,
            how,
            rows,
            self.factor,
            bias=self.bias,
            floats=self.floats,
            **around,
        )


class HasBias(Protocol):
    """A product, of which either all experts have a bias or none."""

    bias: Tensor | None


def stacked(module: nn.Module) -> StackedExperts | None:
    """Return the kernels of a module with the products of experts. None: there are none."""
    made: Callable[[], StackedExperts | None] | None = getattr(module, "gpu_experts", None)
    return None if made is None else made()


def stack_biases(products: Sequence[HasBias]) -> Tensor | None:
    biases = [each.bias for each in products if each.bias is not None]
    return torch.stack(biases) if biases else None


def stack_buffer(products: Sequence[nn.Module], name: str) -> Tensor:
    """Move a buffer of each product to one tensor, of which each keeps its own part."""
    whole = torch.stack([each.get_buffer(name) for each in products])
    for each, part in zip(products, whole, strict=True):
        setattr(each, name, part)
    return whole
