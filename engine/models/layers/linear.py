"""Linear attention: a gated delta rule over a recurrent state, after a convolution and before a gate.

And a layer that is only the convolution.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.api.cache_spec import CacheSpec
from engine.api.config import DecoderConfig
from engine.attention.delta import EPS, DeltaRule
from engine.attention.short_conv import ShortConvolution
from engine.models.layers.activations import sigmoid, silu
from engine.models.layers.build import Build
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, ROWS, WHOLE, Sharding, by_head, segments
from engine.models.layers.step import StepContext
from engine.quant.experts import ExactLinear
from engine.quant.linear import parameter

if TYPE_CHECKING:
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual


class LinearAttention(Part):
    """With a tensor each for queries, keys and values, for output gates, and for the two gates of a state."""

    pdl = True
    interleaved: ClassVar[bool] = False  # whether the outputs of both products are ordered by key head

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        whole = config.layers[index].state
        assert whole is not None
        key_heads = build.share(whole.key_heads, "key heads of linear attention")
        state = replace(whole, key_heads=key_heads, heads=whole.heads // build.ranks)
        self.sizes, self.cache = state, CacheSpec.of_state(state)
        self.cut = by_head(whole.key_heads)  # with the value heads that each serves
        self.values = state.heads * state.value_dim
        self.norm = build.input_norm(config.hidden)
        self.mixed = build.linear(config.hidden, state.channels + self.values)  # the last ones are the gates
        self.gates = ExactLinear.wide(config.hidden, 2 * state.heads)
        self.conv = parameter(state.channels, 1, state.taps, dtype=build.dtype)
        self.decay = parameter(state.heads, dtype=torch.float32)  # the logarithm of its rate
        self.decay_bias = parameter(state.heads, dtype=torch.float32)
        self.out_norm = replace(build, norms="rms", norm_operator="").norm(state.value_dim)
        self.out = build.linear(self.values, config.hidden)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        state, names, cut = self.sizes, self.names, self.cut
        return {
            "norm": (SourceTensor(names["attention.norm"], self.hidden, WHOLE),),
            "conv": (SourceTensor(names["linear.conv"], state.channels, self.qkv_cut),),
            "decay": (SourceTensor(names["linear.decay"], state.heads, cut),),
            "decay_bias": (SourceTensor(names["linear.decay_bias"], state.heads, cut),),
            "out_norm": (SourceTensor(names["linear.out_norm"], state.value_dim, WHOLE),),
            "out": (SourceTensor(names["linear.out"], self.hidden, COLUMNS),),
            **self.inputs(),
        }

    @property
    def qkv_cut(self) -> Sharding:
        """How rows of all queries, all keys and all values are cut."""
        keys = self.sizes.key_heads * self.sizes.key_dim
        return segments((keys, self.cut), (keys, self.cut), (self.values, self.cut))

    def inputs(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        """Return the tensors of `mixed` and of `gates`."""
        state, names = self.sizes, self.names
        return {
            "mixed": (
                SourceTensor(names["linear.qkv"], state.channels, self.qkv_cut),
                SourceTensor(names["linear.gate"], self.values, self.cut),
            ),
            "gates": (
                SourceTensor(names["linear.beta"], state.heads, self.cut),
                SourceTensor(names["linear.rate"], state.heads, self.cut),
            ),
        }

    def split(self, mixed: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the inputs of the convolution, output gates, betas and rates."""
        qkv, gate = mixed.split([self.sizes.channels, self.values], 1)
        beta, rate = gates.chunk(2, 1)
        return qkv, gate.unflatten(1, (self.sizes.heads, -1)), beta, rate

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        normed = self.norm(x)
        qkv, gate, beta, rate = self.split(self.mixed(normed), self.gates(normed.float()))
        # In float64, because the last bits of torch's softplus depend on other tokens.
        speed = self.decay.double().exp() * F.softplus(rate.double() + self.decay_bias)
        state_gates = torch.stack(((-speed).exp().float(), sigmoid(beta)), 1)
        rule = DeltaRule(self.sizes, self.conv.squeeze(1))
        mixed = self.out_norm(step.attend(self.index, qkv, state_gates, rule))
        out: Tensor = self.out((mixed * silu(gate.float())).to(x.dtype).flatten(1))
        return out

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual":
        layer, runs, pdl = step.layers[self.index], step.states(), step.pdl
        assert layer.state is not None
        given = x.normed(self.norm, gpu, pdl=pdl).values
        rates = gpu.router_logits(given, self.gates.weight, pdl=pdl)
        parts = gpu.product(self.mixed).parts(given, pdl=pdl)
        how = (self.conv.squeeze(1), rates, self.decay, self.decay_bias, runs, self.sizes, EPS)
        qkv, gates = gpu.prepare_states(layer, parts, *how, interleaved=self.interleaved, pdl=pdl)
        gate = gpu.output_gate(self.out_norm.weight, self.out_norm.eps, parts, self.interleaved)
        mixed = gpu.advance_states(layer.state, qkv, gates, runs, self.sizes, layer.block_size, gate, pdl=pdl)
        return x.plus(gpu.product(self.out), mixed.flatten(1), step)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        return gpu.product(self.mixed).single and gpu.product(self.out).single


class InterleavedLinearAttention(LinearAttention):
    """The tensors of each key head are next to each other, in one for all but the gates of a state."""

    interleaved = True

    def inputs(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        state, names = self.sizes, self.names
        return {
            "mixed": (SourceTensor(names["linear.qkv_gate"], state.channels + self.values, self.cut),),
            "gates": (SourceTensor(names["linear.beta_rate"], 2 * state.heads, self.cut),),
        }

    def split(self, mixed: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        state = self.sizes
        each = state.heads // state.key_heads
        widths = (state.key_dim, state.key_dim, each * state.value_dim, each * state.value_dim)
        q, k, v, gate = mixed.unflatten(1, (state.key_heads, -1)).split(widths, 2)
        beta, rate = gates.unflatten(1, (state.key_heads, 2, each)).unbind(2)
        qkv = torch.cat([part.flatten(1) for part in (q, k, v)], 1)
        return qkv, gate.reshape(len(gate), state.heads, -1), beta.flatten(1), rate.flatten(1)


class ShortConv(Part):
    """The convolution of LFM2, between two gates that are made from the same token."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        whole = config.layers[index].state
        assert whole is not None
        self.sizes = replace(whole, value_dim=build.share(whole.value_dim, "channels of a convolution"))
        self.cache, width = CacheSpec.of_state(self.sizes), self.sizes.channels
        biased: bool = config.settings["conv_bias"]
        self.norm = build.input_norm(config.hidden)
        self.mixed = build.linear(config.hidden, 3 * width, bias=biased)
        self.conv = parameter(width, 1, self.sizes.taps, dtype=build.dtype)
        self.conv_bias = parameter(width, dtype=build.dtype) if biased else None
        self.out = build.linear(width, config.hidden, bias=biased)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        names, width = self.names, self.sizes.channels
        found = {
            "norm": (SourceTensor(names["attention.norm"], self.hidden, WHOLE),),
            "mixed": (SourceTensor(names["linear.in"], 3 * width, segments(*[(width, ROWS)] * 3)),),
            "conv": (SourceTensor(names["linear.conv"], width, ROWS),),
            "out": (SourceTensor(names["linear.out"], self.hidden, COLUMNS),),
        }
        if self.conv_bias is not None:
            found["conv_bias"] = (SourceTensor(names["linear.conv_bias"], width, ROWS),)
        return found

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        before, after, given = self.mixed(self.norm(x)).chunk(3, 1)
        rule, none = ShortConvolution(self.sizes, self.conv.squeeze(1), self.conv_bias), x[:, :0]
        found = step.attend(self.index, before * given, none, rule).to(x.dtype)
        out: Tensor = self.out(after * found)
        return out

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual":
        layer, product = step.layers[self.index], gpu.product(self.mixed)
        if step.single:
            made = x.norm_gemv(product, self.norm, gpu, pdl=False)
        else:
            parts = product.parts(x.normed(self.norm, gpu, pdl=False).values)
            made = parts[0] if len(parts) == 1 else parts.sum(0).to(x.stream.dtype)
        before, after, given = made.chunk(3, 1)
        how = (self.conv.squeeze(1), self.conv_bias, step.states())
        found, _ = gpu.convolve(layer, (before * given).unsqueeze(0), 0, *how, activated=False)
        return x.plus(gpu.product(self.out), after * found.to(after.dtype), step)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        products = gpu.product(self.mixed), gpu.product(self.out)
        return all(each.single for each in products) and gpu.norm_of(self.norm) is not None
