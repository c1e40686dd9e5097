"""A mixture of experts on a GPU: the router's kernels, and the products with the chosen experts' weights."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.api.config import ExpertsSpec
from engine.kernels import switches
from engine.kernels.triton.experts.gemm import Gate
from engine.kernels.triton.experts.one_row import Scores, norm_router, routed_down, routed_gate_up, takes_row
from engine.kernels.triton.experts.route import Routing, route, router_logits
from engine.kernels.triton.experts.stacked import StackedExperts
from engine.kernels.triton.experts.tiles import ExpertTiles, expert_tiles
from engine.models.layers.norm import RmsNorm
from engine.quant.product import Product

Weights = tuple[Tensor, Tensor]  # of both products


@dataclass(frozen=True, slots=True)
class WeighedProduct(Product):
    """The last product of experts, weighed for each pair; the reader adds up the chosen experts."""

    experts: StackedExperts
    ids: Tensor  # [rows, chosen]
    pair_weights: Tensor  # the same shape
    tiles: ExpertTiles | None = None  # None: of one row, for which there are kernels

    def parts(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if self.tiles is None:
            return self.gemv(x, pdl=pdl).unsqueeze(0)
        rows = len(self.ids)
        return self.experts.multiplied(x, self.tiles, rows, pair_weights=self.pair_weights, pdl=pdl)

    def gemv(self, x: Tensor, **around: Any) -> Tensor:
        return self.experts.down_gemv(x, self.ids, self.pair_weights, **around)


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
        self,
        x: Tensor,
        router: Tensor,
        logit_bias: Tensor | None,
        *,
        best: int,
        sigmoid: bool,
        bias: Tensor | None,
        counts: Tensor | None = None,
        places: Tensor | None = None,
        pdl: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return each row's weights and experts. `best` as in Routing; `bias` takes part in the choice.

        `counts`: of the layer, and `places`: see ExpertTally.
        """
        logits = router_logits(x, router, pdl=pdl)
        return route(logits, self._routing(sigmoid, best), logit_bias, bias, counts, places, pdl=pdl)

    def added_to_row(
        self,
        x: Tensor,
        norm: RmsNorm,
        router: Tensor,
        logit_bias: Tensor | None,
        gate: Gate,
        shared: Weights | None,
        *,
        best: int,
        sigmoid: bool,
        bias: Tensor | None,
        counts: Tensor | None = None,
        places: Tensor | None = None,
        pdl: bool,
    ) -> Tensor | None:
        """Return the sum of one row [1, hidden] and its experts' outputs, with the arguments of `routed`.

        `shared`: of an expert for all rows. None: there are no kernels.
        """
        gate_up, down, how = self.gate_up.unquantized, self.down.unquantized, self._routing(sigmoid, best)
        if not switches.ONE_ROW or gate_up is None or down is None:
            return None
        first, last = shared or (None, None)
        if not takes_row(gate_up[0], down[0], how, 0 if last is None else last.shape[1]):
            return None
        logits, normed = norm_router(x, *norm, router, logit_bias, pdl=pdl)
        scores = Scores(logits, how, bias)
        act = routed_gate_up(
            normed, gate_up[0], scores, gate,
            bias=gate_up[1], shared=first, counts=counts, places=places, pdl=pdl,
        )  # fmt: skip
        return routed_down(act, down[0], scores, x, bias=down[1], shared=last, pdl=pdl)

    def _routing(self, sigmoid: bool, best: int) -> Routing:
        spec = self.spec
        return Routing(
            spec.chosen, sigmoid, spec.groups, spec.chosen_groups, best, spec.normalized, spec.scaling
        )

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
