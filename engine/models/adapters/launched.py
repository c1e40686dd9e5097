"""The adapters of a step on a GPU, by kernels that a graph can hold."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from engine.kernels.triton.gemm.low_rank import expand, expand_swiglu, shrink
from engine.kernels.triton.gemm.row_terms import MOST_RANKS, RowAdapters, RowTerms
from engine.kernels.triton.gemm.skinny_gemm import NARROW
from engine.kernels.triton.kv.rope_and_cache import adds_terms, rope_and_cache
from engine.kernels.triton.norm.norm import Normed
from engine.kernels.triton.norm.swiglu import swiglu
from engine.models.adapters.products import StepAdapters
from engine.models.adapters.table import AdapterLayout, AdapterTable
from engine.models.layers.gpu import GpuKernels
from engine.models.layers.part import Part
from engine.quant.product import Product, Rotation

# Whether products of few rows with plain weights are in one launch with all that adapters add to them.
ONE_LAUNCH = True


@dataclass(frozen=True, slots=True)
class LaunchedAdapters(StepAdapters):
    table: AdapterTable
    places: Tensor  # [tokens]: where each one's adapter is in the table
    launches: ClassVar[bool] = True

    @property
    def layout(self) -> AdapterLayout:
        return self.table.layout

    def add(self, layer: int, product: str, x: Tensor, out: Tensor) -> None:
        if (adapters := self._of(layer, product)) is not None:
            expand(out, shrink(x, adapters), adapters)

    def around(self, layer: int, name: str, product: Product) -> Product:
        adapters = self._of(layer, name)
        return product if adapters is None else AdaptedProduct(product, adapters)

    def _of(self, layer: int, name: str) -> RowAdapters | None:
        """None: no adapter adds to this product."""
        table, layout = self.table, self.layout
        modules = table.modules.get((layer, name))
        if modules is None or name not in layout.products:
            return None
        own = table.numbers[:, modules.columns]
        return RowAdapters(own, self.places, layout.rank, modules.outputs, modules.aligned, table.dtype)


class AdaptedKernels(GpuKernels):
    """The kernels that a part launches in a step with adapters."""

    def __init__(self, gpu: GpuKernels, part: Part, adapters: StepAdapters) -> None:
        self.overlaps, self.tiles = gpu.overlaps, gpu.tiles
        self._layer, self._adapters = part.index, adapters
        self._names = {id(getattr(part, name)): name for name in part.adaptable}

    def product(self, module: nn.Module) -> Product:
        found, name = super().product(module), self._names.get(id(module))
        return found if name is None else self._adapters.around(self._layer, name, found)


class AdaptedProduct(Product):
    """A product with what adapters add to it. It reads complete norms, which are not rounded."""

    def __init__(self, product: Product, adapters: RowAdapters) -> None:
        self._product, self._adapters = product, adapters
        self.scales = product.scales

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if (whole := self._whole(x, pdl)) is not None:
            return whole
        parts, narrow = self._product.parts_and_shrunk(x, self._adapters, pdl=pdl)
        expand(parts[0], narrow, self._adapters, pdl=pdl)
        return parts

    def parts_and_terms(self, x: Normed, *, pdl: bool = False) -> tuple[Tensor, RowTerms | None]:
        if (whole := self._whole(x.values, pdl)) is not None:
            return whole, None
        if len(self._adapters.outputs) > 1 or not self._left_to_reader(x.values):
            return super().parts_and_terms(x, pdl=pdl)
        return self._apart(x, pdl)

    def qkv_rope(self, x: Normed, around: Rotation, *, pdl: bool = False) -> Tensor:
        if (whole := self._whole(x.values, pdl)) is not None:
            return rope_and_cache(whole, *around, dtype=x.dtype, pdl=pdl)
        spec, weight = around[0].spec, around[1]
        modules = tuple(heads * spec.key_dim for heads in (spec.heads, spec.kv_heads, spec.kv_heads))
        left = self._adapters.outputs == modules and self._left_to_reader(x.values)
        if not left or not adds_terms(spec, weight):
            return super().qkv_rope(x, around, pdl=pdl)
        parts, terms = self._apart(x, pdl)
        return rope_and_cache(parts, *around, dtype=x.dtype, terms=terms, pdl=pdl)

    def _whole(self, x: Tensor, pdl: bool) -> Tensor | None:
        return self._product.with_terms(x, self._adapters, pdl=pdl) if ONE_LAUNCH else None

    def _left_to_reader(self, x: Tensor) -> bool:
        """Whether a kernel that reads the product adds to it: it has a program for each row.

        Not in float32, where the compiler joins other products and sums if there is one more.
        """
        own = self._adapters
        return len(x) <= NARROW and own.rank <= MOST_RANKS and own.dtype is x.dtype and x.itemsize == 2

    def _apart(self, x: Normed, pdl: bool) -> tuple[Tensor, RowTerms]:
        parts, narrow = self._product.parts_and_shrunk(x.values, self._adapters, pdl=pdl)
        return parts, RowTerms(narrow, self._adapters)

    def swiglu(self, x: Normed, *, pdl: bool = False) -> Tensor:
        """In one kernel with `expand`, if gate and up are modules of their own."""
        if (whole := self._whole(x.values, pdl)) is not None:
            return swiglu(whole, x.dtype, pdl=pdl)
        if self._adapters.table.shape[1] != 2:
            return super().swiglu(x, pdl=pdl)
        parts, narrow = self._product.parts_and_shrunk(x.values, self._adapters, pdl=pdl)
        return expand_swiglu(parts, narrow, self._adapters, pdl=pdl)
