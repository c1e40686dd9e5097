"""What parts launch with on a GPU, and the stream that goes from one to the next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from engine.kernels.triton.attention import tiles
from engine.kernels.triton.gemm.tma_gemm import ROOM
from engine.kernels.triton.kv.rope_and_cache import rope_and_cache
from engine.kernels.triton.norm.norm import Normed, norm
from engine.kv.store import KVLayer
from engine.models.layers.norm import RmsNorm
from engine.models.layers.step import StepContext
from engine.quant.product import ModuleProduct, PlainProduct, Product


class GpuKernels:
    """The kernels of a device, and what decides between them."""

    rope_and_cache = staticmethod(rope_and_cache)

    def __init__(self, limits: tiles.GpuLimits) -> None:
        self.overlaps = limits.overlaps  # kernels may start while the one before ends
        self._tiles = limits.room >= ROOM

    def product(self, module: nn.Module) -> Product:
        """What launches it: the way it names itself, else its own forward."""
        launched: Callable[[GpuKernels], Product] | None = getattr(module, "gpu_product", None)
        return ModuleProduct(module) if launched is None else launched(self)

    def plain(self, weight: Tensor) -> Product:
        return PlainProduct(weight, tiles=self._tiles)

    def called(self, module: nn.Module) -> Product:
        return ModuleProduct(module)

    def norm_of(self, module: nn.Module) -> RmsNorm | None:
        """None: no kernel of ours norms so."""
        launched: Callable[[], RmsNorm | None] | None = getattr(module, "rms_norm", None)
        return None if launched is None else launched()


@dataclass
class GpuStep(StepContext):
    """What all parts of a step on a GPU read."""

    places: Tensor  # [tokens]: the cell of the cache that each is written to
    layers: Sequence[KVLayer]
    mix: Callable[[Tensor, KVLayer], Tensor]  # attends over what is written already
    single: bool  # one row, and all parts have a shorter way for it
    pdl: bool  # whether the part's kernels start while the one before ends


@dataclass(slots=True)
class Residual:
    """The stream between parts, and a product that is still to be added to it.

    A part leaves its last product undone, since what reads the stream next knows what it needs of it: a norm
    that adds up the product's parts, half a norm with sums of squares, or the plain sum. It is added once.
    """

    stream: Tensor  # [rows, hidden], which is overwritten
    _product: Product | None = None  # of `_given`
    _given: Tensor | None = None
    _pdl: bool = False

    def plus(self, product: Product, given: Tensor, step: GpuStep) -> "Residual":
        """The stream with a product to add, after `normed`, `norm_gemv` or `total` has added the last."""
        assert self._product is None, "what was left to add would be lost"
        if step.single:
            return Residual(product.gemv(given, residual=self.stream, pdl=step.pdl))
        return Residual(self.stream, product, given, step.pdl)

    def normed(self, module: nn.Module, gpu: GpuKernels, *, half: bool = False, pdl: bool) -> Normed:
        """The norm of the sum. `half`: what reads it can finish a norm that is half done."""
        ours = gpu.norm_of(module)
        if ours is None:
            return Normed(module(self.total()))
        product, given = self._taken()
        if product is None or given is None:
            return Normed(norm(self.stream, None, *ours, pdl=pdl))
        if half and (done := product.residual_norm(self.stream, given, *ours, pdl=self._pdl)):
            return done
        parts = product.parts(given, pdl=self._pdl)
        return Normed(norm(self.stream, parts, *ours, pdl=pdl))

    def norm_gemv(self, product: Product, module: nn.Module, gpu: GpuKernels, **how: Any) -> Tensor:
        """A product of one row, in a step of one, that takes the norm along."""
        ours = gpu.norm_of(module)
        assert ours is not None and self._product is None
        weight, eps = ours
        return product.gemv(self.stream, norm_weight=weight, eps=eps, **how)

    def total(self) -> Tensor:
        """The stream with what was left to add."""
        product, given = self._taken()
        if product is not None and given is not None:
            parts = product.parts(given, pdl=self._pdl)
            self.stream.add_(parts[0] if len(parts) == 1 else parts.sum(0).to(self.stream.dtype))
        return self.stream

    def _taken(self) -> tuple[Product | None, Tensor | None]:
        taken = self._product, self._given
        self._product = self._given = None
        return taken
