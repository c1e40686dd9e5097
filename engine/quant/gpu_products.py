"""Products with quantized weights on CUDA.

A few rows use kernels that read the packed numbers directly, and a single row may use a special one. Many
rows are multiplied with a weight dequantized for the call. The first two can be fused into the decoder
(product.py), `gemv` with the operations before and after a product.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels import switches
from engine.kernels.triton.experts.stacked import (
    Fp8Experts,
    Int4Experts,
    Int8Experts,
    StackedExperts,
    stack_biases,
    stack_buffer,
)
from engine.kernels.triton.gemm import int4_gemm, int4_gemv, skinny_gemm
from engine.kernels.triton.gemm.dequantize import dequantize_fp4, dequantize_int4, dequantize_int8
from engine.kernels.triton.gemm.gemv_in_turns import gemv_in_turns, takes_turns
from engine.kernels.triton.gemm.quantize_fp8 import quantize_fp8
from engine.kernels.triton.gemm.tall_gemm import Tall, tall_gemm, tall_tiling
from engine.kernels.triton.gemm.tma_gemm import Tiling, tma_fp8_tiling, tma_gemm, tma_int8_tiling
from engine.kernels.triton.kv.rope_and_cache import rope_and_cache
from engine.kernels.triton.norm.norm import Normed
from engine.kv.store import KVLayer
from engine.quant.fp8_linear import ScaledFp8
from engine.quant.grouped import GroupedWeight, restore_order
from engine.quant.linear import Launcher
from engine.quant.packing import MX
from engine.quant.product import ModuleProduct, Product, Rotation
from engine.quant.shapes import rounded_up, side_by_side

# Numbers of a weight dequantized at a time: more than a layer's weight, less than a head's.
DEQUANTIZE_ELEMENTS = 2**27


class GpuProduct(nn.Module, Product):
    """The common part of the products here: `parts` with few rows, and biases."""

    bias: Tensor | None

    @property
    def fused(self) -> bool:
        """Whether `parts` is the complete product."""
        return self.bias is None

    def gpu_product(self, gpu: Launcher) -> Product:
        return self if self.fused else ModuleProduct(self)

    @abstractmethod
    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        """[parts, rows, outputs], without the bias."""

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts(x.contiguous())
        out = parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)
        return out if self.bias is None else out + self.bias


class TiledProduct(GpuProduct):
    """In 8 bits. Its kernel for a single row also fuses the operations before and after it."""

    single = True
    tiles = False  # whether tiles may be copied by TMA

    def gpu_product(self, gpu: Launcher) -> Product:
        self.tiles = gpu.tiles
        return super().gpu_product(gpu)

    def uses_tma(self, rows: int) -> bool:
        return self.tiling(rows) is not None

    @abstractmethod
    def tiling(self, rows: int) -> Tiling | None:
        """None: tiles are not copied by TMA."""

    @abstractmethod
    def gemv(self, x: Tensor, **around: Any) -> Tensor: ...


class Int8Product(TiledProduct):
    """int8, with a scale per output."""

    FEW = 128  # up to this many rows they are not multiplied with a dequantized weight, even without TMA

    numbers: Tensor
    scale: Tensor

    def __init__(self, numbers: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """`numbers` [outputs, inputs], `scale` [outputs]."""
        super().__init__()
        self.register_buffer("numbers", numbers.view(torch.uint8) ^ 128, persistent=False)  # offset by 128
        self.register_buffer("scale", scale, persistent=False)
        self.rows = max(1, DEQUANTIZE_ELEMENTS // numbers.shape[1])
        self.bias = bias

    def tiling(self, rows: int) -> Tiling | None:
        return tma_int8_tiling(rows, self.numbers) if self.tiles else None

    def gemv(self, x: Tensor, **around: Any) -> Tensor:
        return skinny_gemm.gemv(x, self.numbers, self.scale, **around)

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if len(x) == 1:
            return self.gemv(x, pdl=pdl).unsqueeze(0)
        if x.itemsize == 2 and (how := self.tiling(len(x))):
            return tma_gemm(Normed(x), self.numbers, how, self.scale, pdl=pdl)
        if len(x) <= self.FEW and (cut := skinny_gemm.int8_gemm_tiling(len(x), self.numbers)):
            return skinny_gemm.skinny_gemm(x, self.numbers, cut, self.scale, pdl=pdl)
        pieces = zip(self.numbers.split(self.rows), self.scale.split(self.rows), strict=True)
        return side_by_side([F.linear(x, dequantize_int8(*piece, x.dtype)) for piece in pieces]).unsqueeze(0)

    @staticmethod
    def stacked(products: "Sequence[Int8Product]") -> StackedExperts | None:
        """Return the products of experts as one."""
        numbers, scale = (stack_buffer(products, name) for name in ("numbers", "scale"))
        return Int8Experts(numbers, scale, stack_biases(products))

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        return (self.numbers.float() - 128) * self.scale[:, None]


class Int4Product(GpuProduct):
    """int4 in groups. For a single row it can fuse the operations before and after it."""

    FEW = 256  # rows

    words: Tensor
    grid: Tensor
    eye: Tensor
    order: Tensor | None

    def __init__(self, weight: GroupedWeight, bias: Tensor | None, inputs: int, dtype: torch.dtype) -> None:
        """`dtype`: of the activations."""
        super().__init__()
        self.outputs, width = weight.numbers.shape
        self.inputs = inputs
        self.kind = torch.bfloat16 if dtype is torch.bfloat16 else torch.float16
        more = rounded_up(width, int4_gemm.UNIT) - width
        numbers = F.pad(weight.numbers, (0, more))
        # The padding is whole groups: if the group size does not divide it, groups are split to a size that
        # does.
        group = weight.group if more % weight.group == 0 else math.gcd(weight.group, int4_gemm.UNIT)
        scale, zero = (
            F.pad(each.repeat_interleave(weight.group // group, 1), (0, more // group))
            for each in (weight.scale, weight.zero)
        )
        self.register_buffer("words", int4_gemm.pack_int4(numbers), persistent=False)
        self.register_buffer("grid", int4_gemm.scale_grid(scale, zero, self.kind), persistent=False)
        eye = int4_gemv.ones_of(self.kind, self.words.device)  # not created during graph capture
        self.register_buffer("eye", eye, persistent=False)
        self.register_buffer("order", weight.order, persistent=False)
        self.bias = bias

    @staticmethod
    def bytes_of(outputs: int, width: int, group: int) -> int:
        """The size of a weight whose inputs are padded to whole groups."""
        inputs = rounded_up(width, int4_gemm.UNIT)
        group = group if (inputs - width) % group == 0 else math.gcd(group, int4_gemm.UNIT)
        whole = rounded_up(outputs, int4_gemm.TILE)
        return whole * (inputs // 2 + 4 * inputs // group) + 4 * int4_gemv.COLUMNS**2

    @property
    def fused(self) -> bool:
        return self.bias is None and self.order is None

    def finishes(self, rows: int) -> bool:
        """Whether it can finish a half-done norm, which needs the range of bfloat16."""
        return self.fused and rows == 1 and self.kind is torch.bfloat16 and int4_gemv.KNOWN

    def _gemv(self, x: Normed, *, gated: bool = False, pdl: bool = False) -> Tensor:
        outputs = self.outputs // 2 if gated else self.outputs
        return int4_gemv.int4_gemv(x, self.words, self.grid, self.eye, outputs, gated=gated, pdl=pdl)

    def _gemv_residual_norm(
        self, stream: Tensor, x: Tensor, norm_weight: Tensor, eps: float, *, pdl: bool = False
    ) -> Normed:
        return int4_gemv.int4_gemv_residual_norm(
            stream, x, self.words, self.grid, self.eye, norm_weight, eps, pdl=pdl
        )

    def fuses_swiglu(self, rows: int) -> bool:
        return self.finishes(rows)

    def swiglu(self, x: Normed, *, pdl: bool = False) -> Tensor:
        if self.finishes(len(x.values)):
            return self._gemv(x, gated=True, pdl=pdl)
        return super().swiglu(x, pdl=pdl)

    def fuses_qkv_rope(self, rows: int, layer: KVLayer) -> bool:
        return self.finishes(rows)

    def qkv_rope(self, x: Normed, around: Rotation, *, pdl: bool = False) -> Tensor:
        if self.finishes(len(x.values)):
            parts = self._gemv(x, pdl=pdl).unsqueeze(0)
            return rope_and_cache(parts, *around, dtype=x.values.dtype, pdl=pdl)
        return super().qkv_rope(x, around, pdl=pdl)

    def residual_norm(
        self, stream: Tensor, x: Tensor, norm_weight: Tensor, eps: float, *, pdl: bool = False
    ) -> Normed | None:
        return (
            self._gemv_residual_norm(stream, x, norm_weight, eps, pdl=pdl)
            if self.finishes(len(stream))
            else None
        )

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if self.order is not None:
            x = x[:, self.order]
        if len(x) == 1 and x.dtype is self.kind and int4_gemv.KNOWN:
            return self._gemv(Normed(x), pdl=pdl).unsqueeze(0)
        if len(x) <= self.FEW and x.dtype is self.kind:
            how = int4_gemm.int4_gemm_tiling(len(x), self.words)
            return int4_gemm.int4_gemm(x, self.words, self.grid, self.outputs, how, pdl=pdl)
        weight = dequantize_int4(self.words, self.grid, self.kind, self.outputs, self.inputs, x.dtype)
        return F.linear(x, weight).unsqueeze(0)

    @staticmethod
    def stacked(products: "Sequence[Int4Product]") -> StackedExperts | None:
        """Return the products of experts as one. None: the inputs of one are reordered."""
        first = products[0]
        if any(each.order is not None or each.grid.shape != first.grid.shape for each in products):
            return None
        words, grid = (stack_buffer(products, name) for name in ("words", "grid"))
        return Int4Experts(words, grid, first.outputs, first.kind, stack_biases(products))

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        scale, offset = self.grid.view(self.kind).unflatten(1, (-1, 2)).float().permute(2, 1, 0)
        numbers = int4_gemm.unpack_int4(self.words).unflatten(1, (scale.shape[1], -1)).float()
        weight = ((numbers - 8) * scale[..., None] + offset[..., None]).flatten(1)[: self.outputs]
        return restore_order(weight, self.order)[:, : self.inputs]


class Fp4Product(GpuProduct):
    """4-bit floats, in the bytes of the file: exact up to 256 rows, with more rounded like plain weights."""

    FEW = 256  # rows

    words: Tensor
    grid: Tensor
    factor: Tensor

    def __init__(
        self, numbers: Tensor, scale: Tensor, factor: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        """`numbers` [outputs, inputs] uint8, `scale` [outputs, groups] uint8, `factor` [outputs].

        `dtype`: of the activations.
        """
        super().__init__()
        self.outputs, self.inputs = numbers.shape
        self.group = self.inputs // scale.shape[1]
        more = -self.inputs % int4_gemm.UNIT
        numbers, scale = F.pad(numbers, (0, more)), F.pad(scale, (0, more // self.group))
        self.register_buffer("words", int4_gemm.pack_int4(numbers), persistent=False)
        grid = int4_gemm.byte_grid(scale).view(torch.int32)  # torch has few operations for uint32
        self.register_buffer("grid", grid, persistent=False)
        self.register_buffer("factor", factor, persistent=False)
        self.kind = dtype if self._fits(dtype) else torch.bfloat16
        self.bias = bias

    @staticmethod
    def bytes_of(outputs: int, inputs: int, group: int) -> int:
        whole, width = rounded_up(outputs, int4_gemm.TILE), rounded_up(inputs, int4_gemm.UNIT)
        return whole * (width // 2 + width // group) + 4 * outputs

    def _fits(self, dtype: torch.dtype) -> bool:
        """Whether the kernels multiply in this dtype: mxfp4's scales have the range of bfloat16."""
        return dtype is torch.bfloat16 or (dtype is torch.float16 and self.group != MX)

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if len(x) <= self.FEW and self._fits(x.dtype):
            how, grid = int4_gemm.int4_gemm_tiling(len(x), self.words), self.grid.view(torch.uint32)
            return int4_gemm.int4_gemm(x, self.words, grid, self.outputs, how, self.factor, pdl=pdl)
        weight = self._plain(x.dtype)
        return F.linear(x, weight).unsqueeze(0)

    @staticmethod
    def stacked(products: "Sequence[Fp4Product]") -> StackedExperts | None:
        """Return the products of experts as one. None: some are in groups of another size."""
        first = products[0]
        if any(each.grid.shape != first.grid.shape for each in products):
            return None
        words, grid, factor = (stack_buffer(products, name) for name in ("words", "grid", "factor"))
        return Int4Experts(
            words,
            grid.view(torch.uint32),
            first.outputs,
            first.kind,
            stack_biases(products),
            factor=factor,
        )

    def dequantized(self) -> Tensor:
        """Return the weight it multiplies with, [outputs, inputs] in float32."""
        return self._plain(torch.float32)

    def _plain(self, dtype: torch.dtype) -> Tensor:
        grid = self.grid.view(torch.uint32)
        return dequantize_fp4(self.words, grid, self.factor, self.inputs, dtype)


class Fp8Product(ScaledFp8, TiledProduct):
    """fp8: the single-row kernel rounds its input; more rows are rounded by a kernel before the product."""

    FEW = 64  # up to this many rows our product without TMA is faster than torch's

    @property
    def fused(self) -> bool:
        return self.bias is None and self._even

    @property
    def _even(self) -> bool:
        """Whether the weight is not padded."""
        return self.weight.shape == (self.outputs, self.inputs)

    def uses_tma(self, rows: int) -> bool:
        return super().uses_tma(rows) or self.tall(rows) is not None

    def tall(self, rows: int) -> Tall | None:
        return tall_tiling(rows, self.weight) if self.tiles and self._even else None

    def tiling(self, rows: int) -> Tiling | None:
        return tma_fp8_tiling(rows, self.weight) if self.tiles and self._even else None

    def gemv(self, x: Tensor, **around: Any) -> Tensor:
        turns = switches.IN_TURNS and takes_turns(x.shape[1], **around)
        return (gemv_in_turns if turns else skinny_gemm.gemv)(x, self.weight, self.scale[0], **around)

    def rounds(self, rows: int) -> bool:
        return rows > 1 and self._even

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if self._even and len(x) == 1:
            return self.gemv(x, pdl=pdl).unsqueeze(0)
        numbers, steps = quantize_fp8(x, self.weight.shape[1], pdl=pdl)
        return self.parts_of(Normed(numbers, steps=steps, unrounded=x.dtype), pdl=pdl)

    def parts_of(self, x: Normed, *, pdl: bool = False) -> Tensor:
        numbers, steps, dtype = x.values, x.steps, x.dtype
        if steps is None:
            return self.parts(numbers, pdl=pdl)
        if tall := self.tall(len(numbers)):
            return tall_gemm(x, self.weight, tall, self.scale[0], pdl=pdl)
        if how := self.tiling(len(numbers)):
            return tma_gemm(x, self.weight, how, self.scale[0], pdl=pdl)
        few = self._even and len(numbers) <= self.FEW
        if few and (cut := skinny_gemm.int8_gemm_tiling(len(numbers), self.weight)):
            by = self.scale[0], steps
            return skinny_gemm.skinny_gemm(numbers, self.weight, cut, *by, dtype=dtype, pdl=pdl)
        return self.multiplied(numbers, steps[:, None], dtype).unsqueeze(0)

    @staticmethod
    def stacked(products: "Sequence[Fp8Product]") -> StackedExperts | None:
        """Return the products of experts as one. None: the weights are padded."""
        first = products[0]
        if first.weight.shape != (first.outputs, first.inputs):
            return None
        weight, scale = (stack_buffer(products, name) for name in ("weight", "scale"))
        return Fp8Experts(weight, scale[:, 0], stack_biases(products))

    def forward(self, x: Tensor) -> Tensor:
        return GpuProduct.forward(self, x)
