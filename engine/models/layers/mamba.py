"""Mamba-2: a state space after a convolution, and before a gate and a norm. Alone, or beside attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.cache_spec import CacheSpec
from engine.api.config import DecoderConfig
from engine.attention.state_space import StateSpace
from engine.models.layers.activations import silu
from engine.models.layers.attention import GroupedAttention
from engine.models.layers.build import Build
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, ROWS, WHOLE, by_head, segments
from engine.models.layers.step import StepContext
from engine.quant.linear import parameter

if TYPE_CHECKING:
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual


class MambaMixer(Part):
    """One product makes gates, values, keys, queries and step sizes."""

    pdl = True

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        whole, settings = config.layers[index].state, config.settings
        assert whole is not None
        # Ranks have whole groups of heads, or a part of the only one, whose keys and queries all compute.
        self.parted = whole.key_heads == 1 < build.ranks
        groups = 1 if self.parted else build.share(whole.key_heads, "groups of a state space")
        heads = build.share(whole.heads, "heads of a state space")
        self.sizes = state = replace(whole, key_heads=groups, heads=heads)
        self.cache, self.whole_groups = CacheSpec.of_state(state), whole.key_heads
        self.values, self.eps = state.heads * state.value_dim, build.eps
        self.collective = build.collective
        self.counted = self.values // groups * (build.ranks if self.parted else 1)  # numbers of a norm
        self.steps: tuple[float, float] = settings["steps"]
        self.norm = build.input_norm(config.hidden)
        bias: bool = settings["state_bias"]
        self.mixed = build.linear(config.hidden, self.values + state.channels + state.heads, bias=bias)
        self.conv = parameter(state.channels, 1, state.taps, dtype=build.dtype)
        self.conv_bias = parameter(state.channels, dtype=build.dtype) if settings["conv_bias"] else None
        self.decay = parameter(state.heads, dtype=torch.float32)  # the logarithm of its rate
        self.step_bias = parameter(state.heads, dtype=torch.float32)
        self.skip = parameter(state.heads, dtype=torch.float32)
        self.out_norm = parameter(self.values, dtype=build.dtype)  # of each group
        self.out = build.linear(self.values, config.hidden, bias=bias)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        state, names = self.sizes, self.names
        keys = (state.key_heads * state.key_dim, by_head(self.whole_groups))
        convolved, outer = ((self.values, ROWS), keys, keys), (state.heads, ROWS)
        mixed = (self.values + state.channels + state.heads, segments((self.values, ROWS), *convolved, outer))
        found = {
            "norm": (SourceTensor(names["attention.norm"], self.hidden, WHOLE),),
            "mixed": (SourceTensor(names["linear.in"], *mixed),),
            "conv": (SourceTensor(names["linear.conv"], state.channels, segments(*convolved)),),
            "decay": (SourceTensor(names["linear.decay"], *outer),),
            "step_bias": (SourceTensor(names["linear.step_bias"], *outer),),
            "skip": (SourceTensor(names["linear.skip"], *outer),),
            "out_norm": (SourceTensor(names["linear.out_norm"], self.values, ROWS),),
            "out": (SourceTensor(names["linear.out"], self.hidden, COLUMNS),),
        }
        if self.conv_bias is not None:
            bias = SourceTensor(names["linear.conv_bias"], state.channels, segments(*convolved))
            found["conv_bias"] = (bias,)
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        widths = [self.values, self.sizes.channels, self.sizes.heads]
        gate, mixed, given = self.mixed(self.norm(x)).split(widths, 1)
        found = step.attend(self.index, mixed, self.steps_of(given), self.space()).flatten(1)
        out: Tensor = self.out(self.normed(found * silu(gate.float())).to(x.dtype))
        return out

    def steps_of(self, given: Tensor) -> Tensor:
        """Return the gates: logarithms of decays, and step sizes."""
        # In float64, because the last bits of torch's softplus depend on other tokens.
        sizes = F.softplus(given.double() + self.step_bias).clamp(*self.steps).float()
        return torch.stack((-self.decay.exp() * sizes, sizes), 1)

    def space(self) -> StateSpace:
        return StateSpace(self.sizes, self.conv.squeeze(1), self.conv_bias, skip=self.skip)

    def normed(self, x: Tensor) -> Tensor:
        """In float32, each group apart."""
        groups = x.unflatten(1, (self.sizes.key_heads, -1))
        squares = (groups * groups).sum(-1, keepdim=True)
        if self.parted and self.collective is not None:
            squares = self.collective.sum(squares)
        even = groups / squares.div_(self.counted).add_(self.eps).sqrt_()
        return even.flatten(1) * self.out_norm.float()

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        if self.parted:
            return None
        layer, runs, pdl, sizes = step.layers[self.index], step.states(), step.pdl, self.sizes
        assert layer.state is not None
        product = gpu.product(self.mixed)
        if step.single:
            parts = x.norm_gemv(product, self.norm, gpu, pdl=pdl).unsqueeze(0)
        else:
            parts = product.parts(x.normed(self.norm, gpu, pdl=pdl).values, pdl=pdl)
        steps = gpu.step_sizes(self.values + sizes.channels, self.decay, self.step_bias, self.steps)
        how = (self.conv.squeeze(1), self.conv_bias, runs, steps)
        mixed, gates = gpu.convolve(layer, parts, self.values, *how, pdl=pdl)
        exact = x.stream.dtype is torch.float32
        where = (self.skip, runs, sizes, layer.block_size)
        found = gpu.advance_space(layer.state, mixed, gates, *where, exact=exact, pdl=pdl).flatten(1)
        given = gpu.gated_group_norm(found, parts, self.out_norm, self.eps, sizes.key_heads, pdl=pdl)
        return x.plus(gpu.product(self.out), given, step)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        products = gpu.product(self.mixed), gpu.product(self.out)
        return (
            not self.parted and all(each.single for each in products) and gpu.norm_of(self.norm) is not None
        )


class MultipliedMixer(MambaMixer):
    """The state space of Falcon-H1: factors for what it makes; a norm before or after the gate, or none."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        settings, state = config.settings, self.sizes
        self.order: str = settings["norm"]  # "gate first", "norm first", or "none"
        if self.order == "none":
            del self.out_norm
        self.out = build.linear(self.values, config.hidden, bias=settings["state_out_bias"])
        keys = state.key_heads * state.key_dim
        self.widths = (self.values, self.values, keys, keys, state.heads)
        self.factors: tuple[float, ...] = settings["state_factors"]

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        found = dict(super().pieces())
        if self.order == "none":
            del found["out_norm"]
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        parts = zip(self.mixed(self.norm(x)).split(self.widths, 1), self.factors, strict=True)
        gate, *convolved, given = (part * factor for part, factor in parts)
        gates, space = self.steps_of(given), self.space()
        found = step.attend(self.index, torch.cat(convolved, 1), gates, space).flatten(1)
        gate = silu(gate.float())
        match self.order:
            case "gate first":
                found = self.normed(found * gate)
            case "norm first":
                found = self.normed(found) * gate
            case _:
                found = found * gate
        out: Tensor = self.out(found.to(x.dtype))
        return out

    fused = Part.fused


class ParallelMixer(Part):
    """Attention and a state space read the same norm, and their terms are added."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        inner = replace(build, norms_input=False)
        self.norm = build.input_norm(config.hidden)
        self.attention = GroupedAttention(config, index, inner)
        self.mamba = MultipliedMixer(config, index, inner)
        assert self.attention.cache is not None
        self.cache = replace(self.attention.cache, state=self.mamba.sizes)
        self.factors: Mapping[str, float] = config.settings["factors"]

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        norm = SourceTensor(self.names["attention.norm"], self.hidden, WHOLE)
        found: dict[str, tuple[SourceTensor, ...]] = {"norm": (norm,)}
        for name, part in (("attention", self.attention), ("mamba", self.mamba)):
            found |= {f"{name}.{key}": each for key, each in part.pieces().items() if key != "norm"}
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        normed, factors = self.norm(x), self.factors
        out = self.mamba.forward(normed * factors["ssm_in"], step) * factors["ssm_out"]
        out += self.attention.forward(normed * factors["attention_in"], step) * factors["attention_out"]
        return out
