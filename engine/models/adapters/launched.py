"""The adapters of a step on a GPU, by kernels that a graph can hold."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.triton.gemm.low_rank import Places, expand, shrink
from engine.models.adapters.products import StepAdapters
from engine.models.adapters.table import AdapterTable, Layout
from engine.quant.product import Product


@dataclass(frozen=True, slots=True)
class LaunchedAdapters(StepAdapters):
    table: AdapterTable
    rows: Tensor  # [tokens]: the place of each one's adapter in the table

    @property
    def layout(self) -> Layout:
        return self.table.layout

    def add(self, layer: int, product: str, x: Tensor, out: Tensor) -> None:
        if (places := self._places(layer, product)) is not None:
            expand(out, shrink(x, places), places)

    def around(self, layer: int, name: str, product: Product) -> Product:
        places = self._places(layer, name)
        return product if places is None else AdaptedProduct(product, places)

    def _places(self, layer: int, name: str) -> Places | None:
        """None: no adapter adds to this product."""
        table, layout = self.table, self.table.layout
        modules = table.modules.get((layer, name))
        if modules is None or name not in layout.products:
            return None
        own = table.numbers[:, modules.columns]
        return Places(own, self.rows, layout.rank, modules.widest, modules.aligned, table.dtype)


class AdaptedProduct(Product):
    """A product with what adapters add to it. It reads complete norms, which are not rounded."""

    def __init__(self, product: Product, places: Places) -> None:
        self._product, self._places = product, places
        self.scales = product.scales

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        narrow = shrink(x, self._places, pdl=pdl)
        parts = self._product.parts(x, pdl=pdl)
        expand(parts[0], narrow, self._places, pdl=pdl)
        return parts
