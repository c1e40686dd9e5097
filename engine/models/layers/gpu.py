"""The kernels that parts launch on a GPU, and the residual stream between parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from engine.api.config import ExpertsSpec
from engine.attention.latent import LatentProjections
from engine.attention.state_runs import DeviceRuns
from engine.kernels.triton.attention import tiles
from engine.kernels.triton.experts.gemm import Gate
from engine.kernels.triton.experts.route import MOST_EXPERTS, router_logits
from engine.kernels.triton.experts.stacked import stacked
from engine.kernels.triton.gemm.by_head import absorb, by_head
from engine.kernels.triton.gemm.tma_gemm import ROOM
from engine.kernels.triton.kv.rope_and_cache import rope_and_cache
from engine.kernels.triton.linear import state_space
from engine.kernels.triton.linear.convolve import StepSizes, convolve
from engine.kernels.triton.linear.delta import OutputGate, advance
from engine.kernels.triton.linear.prepare import prepare
from engine.kernels.triton.norm.group_norm import gated_group_norm
from engine.kernels.triton.norm.norm import Normed, normed
from engine.kernels.triton.norm.sigmoid_gate import sigmoid_gate
from engine.kernels.triton.norm.swiglu import relu2
from engine.kv.store import KVLayer
from engine.models.layers.collective import GpuCollective
from engine.models.layers.norm import RmsNorm
from engine.models.layers.routed import RoutedExperts
from engine.models.layers.step import StepContext
from engine.quant.product import BiasedProduct, ModuleProduct, PlainProduct, Product


class GpuKernels:
    """The kernels of a device, and the limits that choose between them."""

    rope_and_cache = staticmethod(rope_and_cache)
    absorb = staticmethod(absorb)
    by_head = staticmethod(by_head)
    sigmoid_gate = staticmethod(sigmoid_gate)
    relu2 = staticmethod(relu2)
    router_logits = staticmethod(router_logits)
    prepare_states = staticmethod(prepare)
    advance_states = staticmethod(advance)
    output_gate = OutputGate
    convolve = staticmethod(convolve)
    advance_space = staticmethod(state_space.advance)
    gated_group_norm = staticmethod(gated_group_norm)
    step_sizes = StepSizes

    def __init__(self, limits: tiles.GpuLimits) -> None:
        self.overlaps = limits.overlaps  # whether it supports programmatic dependent launch (PDL)
        self.tiles = limits.room >= ROOM

    def product(self, module: nn.Module) -> Product:
        """Return what launches the module: its own choice (`gpu_product`), else its forward."""
        launched: Callable[[GpuKernels], Product] | None = getattr(module, "gpu_product", None)
        return ModuleProduct(module) if launched is None else launched(self)

    def plain(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return PlainProduct(weight, tiles=self.tiles) if bias is None else BiasedProduct(weight, bias)

    def called(self, module: nn.Module) -> Product:
        return ModuleProduct(module)

    def experts(
        self, gate_up: nn.Module, down: nn.Module, spec: ExpertsSpec, dtype: torch.dtype
    ) -> RoutedExperts | None:
        """Return the kernels of experts with these products. None: there are none."""
        first, last = stacked(gate_up), stacked(down)
        if first is None or last is None or spec.count > MOST_EXPERTS:
            return None
        if not (first.takes(dtype) and last.takes(dtype)):
            return None
        return RoutedExperts(first, last, spec)

    def gate(self, **fields: Any) -> Gate:
        return Gate(**fields)

    def norm_of(self, module: nn.Module) -> RmsNorm | None:
        """Return the weight and epsilon if the module is an RMS norm our kernels compute, else None."""
        launched: Callable[[], RmsNorm | None] | None = getattr(module, "rms_norm", None)
        return None if launched is None else launched()


@dataclass
class GpuStep(StepContext):
    """What all parts of a GPU step read."""

    places: Tensor  # [tokens]: the cache slot each token is written to
    layers: Sequence[KVLayer]
    write: Callable[[Tensor, Tensor, KVLayer], None]  # writes keys and values [tokens, kv_heads, dim]
    mix: Callable[[Tensor, KVLayer], Tensor]  # attends over keys and values that are already written
    states: Callable[[], DeviceRuns]  # where layers with a recurrent state find and store it
    single: bool  # one row, and all parts have a faster path for it
    pdl: bool  # whether the part's kernels may start before the previous kernel ends
    # Whether prompts read keys and values that are made from latents.
    expands: Callable[[KVLayer, LatentProjections], bool] = field(
        default=lambda layer, up: False, kw_only=True
    )
    # `places` in the blocks of a layer's group. None: there is one group.
    places_of: Callable[[KVLayer], Tensor] | None = field(default=None, kw_only=True)

    def cells(self, layer: KVLayer, dtype: torch.dtype) -> tuple[KVLayer, Tensor]:
        """Where a kernel that rotates keys writes them, too, and in which cells: the cache, or, if that takes
        another kernel, tensors with a cell for each token.
        """
        if layer.channels is None:
            return layer, self.places if self.places_of is None else self.places_of(layer)
        spec, tokens, device = layer.spec, len(self.places), self.places.device
        keys, values = (
            torch.empty(tokens, 1, spec.kv_heads, dim, dtype=dtype, device=device)
            for dim in (spec.key_dim, spec.value_dim)
        )
        return KVLayer(spec, keys, values), torch.arange(tokens, device=device)


@dataclass(slots=True)
class Residual:
    """The residual stream between parts, with a product still to be added.

    A part does not run its last product, since the next reader chooses the form it needs: a norm that adds
    the product's partial sums, half a norm with sums of squares, or the plain sum. It is added exactly once.
    """

    stream: Tensor  # [rows, hidden]; overwritten
    collective: GpuCollective | None = None  # of the ranks, each of which has a part of every product's sum
    scale: float = 1.0  # multiplies each part's term
    _product: Product | None = None  # multiplies `_given`
    _given: Normed | None = None
    _pdl: bool = False
    _term_norm: nn.Module | None = None  # norms the pending product before it is added

    def plus(self, product: Product, given: Tensor, step: GpuStep) -> "Residual":
        """Return the stream with a pending product. The last one must have been added."""
        return self.plus_rounded(product, Normed(given), step)

    def plus_rounded(self, product: Product, given: Normed, step: GpuStep) -> "Residual":
        """Like `plus`, of rows that may be rounded."""
        assert self._product is None, "the pending product would be lost"
        if self.scale != 1.0:
            if not product.scales:
                self.add(self.scaled(product.parts_of(given)[0]))
                return self
            (given.values if given.steps is None else given.steps).mul_(self.scale)
        if step.single:
            return Residual(product.gemv(given.values, residual=self.stream, pdl=step.pdl), scale=self.scale)
        return Residual(self.stream, self.collective, self.scale, product, given, step.pdl)

    def norm_term(self, module: nn.Module) -> None:
        """Norm the pending product, a part's whole term, before it is added."""
        assert self._product is not None, "the term has been added"
        self._term_norm = module

    def scaled(self, term: Tensor) -> Tensor:
        """Return a part's term as it is added."""
        return term if self.scale == 1.0 else term * self.scale

    def normed(
        self, module: nn.Module, gpu: GpuKernels, *, half: bool = False, rounded: bool = False, pdl: bool
    ) -> Normed:
        """Return the norm of the sum.

        `half`: the reader can finish a half-done norm. `rounded`: it rounds the norm, as this may do before.
        """
        ours = gpu.norm_of(module)
        if ours is None:
            return Normed(module(self.total()))
        if self.collective is not None and ours[0].dtype is not self.stream.dtype:
            # Its sum takes weights of that type only.
            return normed(self.total(), None, *ours, rounded=rounded, pdl=pdl)
        term = None
        if self._term_norm is not None:
            term = gpu.norm_of(self._term_norm)
            if self.collective is not None or term is None:
                return normed(self.total(), None, *ours, rounded=rounded, pdl=pdl)
        product, given = self._taken()
        if product is None or given is None:
            return normed(self.stream, None, *ours, rounded=rounded, pdl=pdl)
        if self.collective is not None:
            return self._summed(self.collective, product, given, ours, rounded)
        half = half and term is None
        if half and (done := product.residual_norm(self.stream, given.values, *ours, pdl=self._pdl)):
            return done
        parts, terms = product.parts_and_terms(given, pdl=self._pdl)
        return normed(self.stream, parts, *ours, terms=terms, term=term, rounded=rounded, pdl=pdl)

    def _summed(
        self, collective: GpuCollective, product: Product, given: Normed, ours: RmsNorm, rounded: bool
    ) -> Normed:
        """The norm after the sum of all ranks' products."""
        parts = product.parts_of(given, pdl=self._pdl)
        return collective.sum_norm(self.stream, parts, *ours, rounded=rounded, pdl=self._pdl)

    def norm_gemv(self, product: Product, module: nn.Module, gpu: GpuKernels, **how: Any) -> Tensor:
        """In a step of one row: return a product that includes the norm."""
        ours = gpu.norm_of(module)
        assert ours is not None and self._product is None
        weight, eps = ours
        return product.gemv(self.stream, norm_weight=weight, eps=eps, **how)

    def add_gated(
        self, gate_up: Product, down: Product, given: Tensor, step: GpuStep, *, scale: Tensor | None = None
    ) -> None:
        """Add a gated feed-forward of normed rows at once. `scale`: what multiplies each row's term."""
        if len(given) == 1 and gate_up.single and down.single and scale is None:
            act = self.scaled(gate_up.gemv(given, gated=True, pdl=step.pdl))
            self.stream = down.gemv(act, residual=self.stream, pdl=step.pdl)
            return
        self.add_product(down, gate_up.swiglu(Normed(given), pdl=step.pdl), step, scale=scale)

    def add_product(
        self, product: Product, given: Tensor, step: GpuStep, *, scale: Tensor | None = None
    ) -> None:
        """Add a product at once."""
        parts = product.parts(given, pdl=step.pdl)
        term = self.scaled(parts[0] if len(parts) == 1 else parts.sum(0).to(self.stream.dtype))
        self.add(term if scale is None else term * scale)

    def total(self) -> Tensor:
        """Return the stream with the pending product added."""
        norm = self._term_norm
        product, given = self._taken()
        if product is not None and given is not None:
            parts = product.parts_of(given, pdl=self._pdl)
            self.add(parts[0] if len(parts) == 1 else parts.sum(0).to(self.stream.dtype), norm)
        return self.stream

    def add(self, term: Tensor, norm: nn.Module | None = None) -> None:
        """Add a part's term to the stream, or its norm; over ranks, their sum."""
        whole = term if self.collective is None else self.collective.sum(term)
        self.stream.add_(whole if norm is None else norm(whole))

    def _taken(self) -> tuple[Product | None, Normed | None]:
        taken = self._product, self._given
        self._product = self._given = self._term_norm = None
        return taken
