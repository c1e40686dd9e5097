"""A mixture of experts on a GPU: the router's kernels, and the products with the chosen experts' weights."""

from dataclasses import dataclass

from torch import Tensor, nn

from engine.api.config import ExpertsSpec
from engine.kernels.triton.experts.gemm import Gate
from engine.kernels.triton.experts.route import Routing, route, router_logits
from engine.kernels.triton.experts.tiles import expert_tiles
from engine.quant.gpu_experts import StackedExperts, WeighedProduct
from engine.quant.linear import Linear
from engine.quant.product import Product


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The products of all experts of a layer."""

    gate_up: StackedExperts
    down: StackedExperts
    spec: ExpertsSpec

    @property
    def single(self) -> bool:
        """Whether one row has kernels of its own."""
        return self.gate_up.single and self.down.single

    def routed(
        self, x: Tensor, router: nn.Module, *, best: int, sigmoid: bool, bias: Tensor | None, pdl: bool
    ) -> tuple[Tensor, Tensor]:
        """Return each row's weights and experts. `best` as in Routing; `bias` takes part in the choice."""
        assert isinstance(router, Linear)
        spec = self.spec
        how = Routing(
            spec.chosen, sigmoid, spec.groups, spec.chosen_groups, best, spec.normalized, spec.scaling
        )
        parts = router_logits(x, router.weight, pdl=pdl)
        return route(parts, how, router.bias, bias, pdl=pdl)

    def activated(
        self, x: Tensor, weights: Tensor, ids: Tensor, gate: Gate, *, pdl: bool
    ) -> tuple[Product, Tensor]:
        """Return the product that is still to be launched, and what it multiplies."""
        if len(x) == 1 and self.single:
            act = self.gate_up.gate_up_gemv(x, ids, gate, pdl=pdl)
            return WeighedProduct(self.down, ids, weights), act
        tallest = min(self.gate_up.tallest, self.down.tallest)
        tiles = expert_tiles(ids, self.spec.count, most=tallest, pdl=pdl)
        act = self.gate_up.multiplied(x, tiles, len(x), gate=gate, pdl=pdl)
        return WeighedProduct(self.down, ids, weights, tiles), act
