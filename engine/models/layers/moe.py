"""Mixtures of experts: a router chooses some of many feed-forwards for each token, and weighs their outputs.

The tokens' rows are sorted by expert and multiplied group by group. Nothing waits for the device.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from engine.api.config import DecoderConfig, ExpertsSpec
from engine.models.layers.activations import ACTIVATE, gated, sigmoid
from engine.models.layers.build import Build
from engine.models.layers.part import Part, SourceTensor
from engine.models.layers.sharding import COLUMNS, ROWS, WHOLE, Sharding, segments
from engine.models.layers.step import ExpertTally, StepContext
from engine.quant.experts import ExactLinear
from engine.quant.linear import parameter

if TYPE_CHECKING:
    from engine.models.layers.gpu import GpuKernels, GpuStep, Residual
    from engine.models.layers.routed import RoutedExperts, Weights


class MoE(Part):
    """Gated experts. A subclass that chooses or gates differently must also tell the kernels, see `fused`."""

    pdl = True
    sigmoid: ClassVar[bool] = False  # whether scores are sigmoids, else the softmax over all experts
    best: ClassVar[int] = 1  # experts of a group whose scores are the group's
    inner: ClassVar[tuple[str, ...]] = ("gate", "up")  # the products before an expert's activation
    kernel: ClassVar[str] = "silu"  # the activation that the kernels compute
    weighs_inputs: ClassVar[bool] = False  # whether weights multiply what an expert reads, else its output

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        assert config.experts is not None
        self.spec: ExpertsSpec = config.experts
        self.width = build.share(self.spec.width, "rows of an expert")
        self.activate, self.dtype = ACTIVATE[config.activation], build.dtype
        self.norm = build.input_norm(config.hidden)
        self.router = ExactLinear.wide(config.hidden, self.spec.count, bias=config.mlp_bias)
        inner = len(self.inner) * self.width
        self.gate_up = build.experts(self.spec.count, config.hidden, inner, bias=config.mlp_bias)
        self.down = build.experts(self.spec.count, self.width, config.hidden, bias=config.mlp_bias)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        hidden, names, width, every = self.hidden, self.names, self.width, range(self.spec.count)
        return {
            "norm": (SourceTensor(names["feed_forward.norm"], hidden, WHOLE),),
            "router": (SourceTensor(names["router"], self.spec.count, WHOLE),),
            "gate_up": tuple(
                SourceTensor(names[f"expert.{name}"].format(at), width, ROWS)
                for at in every
                for name in self.inner
            ),
            "down": tuple(SourceTensor(names["expert.down"].format(at), hidden, COLUMNS) for at in every),
        }

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        return self.mixed(self.norm(x), step.tally)

    def mixed(self, x: Tensor, tally: ExpertTally | None = None) -> Tensor:
        """[tokens, hidden] -> the weighted sum of the chosen experts' outputs."""
        weights, experts = self.routed(x)
        if tally is not None:
            tally.add(self.index, experts)
        chosen = self.spec.chosen
        order = experts.flatten().argsort(stable=True)
        counts = torch.zeros(self.spec.count, dtype=torch.int64, device=x.device)
        counts.scatter_add_(0, experts.flatten(), torch.ones_like(order))
        given = x[order // chosen]
        if self.weighs_inputs:
            given *= weights.to(x.dtype).flatten()[order, None]
            weights = torch.ones_like(weights)
        rows = self.down.grouped(self.gated(self.gate_up.grouped(given, counts)), counts)
        each = torch.empty_like(rows).index_copy_(0, order, rows).unflatten(0, (-1, chosen))
        total = each[:, 0] * weights[:, :1]
        for at in range(1, chosen):  # one by one, so that a row's sum does not depend on other rows
            total += each[:, at] * weights[:, at : at + 1]
        return total.to(x.dtype)

    def fused(self, x: "Residual", step: "GpuStep", gpu: "GpuKernels") -> "Residual | None":
        if (experts := self._kernels(gpu)) is None or x.collective is not None:
            return None
        if self.weighs_inputs and self.spec.chosen > 1:  # the experts of a row would read different inputs
            return None
        pdl, router = step.pdl, (self.router.weight, self.router.bias)
        how: dict[str, Any] = {"best": self.best, "sigmoid": self.sigmoid, "bias": self.choice_bias()}
        if step.tally is not None:
            how["counts"], how["places"] = step.tally.counts[self.index], step.tally.places
        norm, shared, plain = gpu.norm_of(self.norm), *self.shared_weights(gpu)
        if step.single and x.scale == 1.0 and norm is not None and plain and not self.weighs_inputs:
            gate = gpu.gate(**self.gate())
            done = experts.added_to_row(x.stream, norm, *router, gate, shared, **how, pdl=pdl)
            if done is not None:
                x.stream = done
                return x
        given = x.normed(self.norm, gpu, pdl=pdl).values
        weights, ids = experts.routed(given, *router, **how, pdl=pdl)
        self.add_shared(x, given, step, gpu)
        if self.weighs_inputs:
            given, weights = given * weights.to(given.dtype), torch.ones_like(weights)
        return x.plus(*experts.activated(given, weights, ids, gpu.gate(**self.gate()), pdl=pdl), step)

    def takes_single(self, gpu: "GpuKernels") -> bool:
        return (experts := self._kernels(gpu)) is not None and experts.single

    def _kernels(self, gpu: "GpuKernels") -> "RoutedExperts | None":
        if self.activate is not ACTIVATE[self.kernel]:
            return None
        return gpu.experts(self.gate_up, self.down, self.spec, self.dtype)

    def add_shared(self, x: "Residual", given: Tensor, step: "GpuStep", gpu: "GpuKernels") -> None:
        """Add the output of the expert that serves all tokens to the stream."""

    def shared_weights(self, gpu: "GpuKernels") -> "tuple[Weights | None, bool]":
        """Return those of the expert that serves all tokens, and whether they are all there is of it."""
        return None, True

    def choice_bias(self) -> Tensor | None:
        """Return what is added to the scores for the choice only."""
        return None

    def gate(self) -> Mapping[str, Any]:
        """Return the fields of the kernels' Gate."""
        return {}

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights in float32 and the experts that each token chooses, [tokens, chosen] each."""
        weights, experts = self.router(x.float()).softmax(-1).topk(self.spec.chosen, sorted=True)
        if self.spec.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, experts

    def gated(self, gate_up: Tensor) -> Tensor:
        return gated(self.activate, gate_up)


class SharedMoE(MoE):
    """Another expert serves all tokens."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.shared_width = build.share(self.spec.shared, "rows of the shared expert")
        self.shared_gate_up = build.linear(config.hidden, len(self.inner) * self.shared_width)
        self.shared_down = build.linear(self.shared_width, config.hidden)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        names, width = self.names, self.shared_width
        if (joined := names.get("shared.gate_up")) is not None:
            inner: tuple[SourceTensor, ...] = (
                SourceTensor(joined, 2 * width, segments((width, ROWS), (width, ROWS))),
            )
        else:
            inner = tuple(SourceTensor(names[f"shared.{name}"], width, ROWS) for name in self.inner)
        return {
            **super().pieces(),
            "shared_gate_up": inner,
            "shared_down": (SourceTensor(names["shared.down"], self.hidden, COLUMNS),),
        }

    def forward(self, x: Tensor, step: StepContext) -> Tensor:
        normed = self.norm(x)
        return self.mixed(normed, step.tally) + self.shared(normed)

    def add_shared(self, x: "Residual", given: Tensor, step: "GpuStep", gpu: "GpuKernels") -> None:
        products = gpu.product(self.shared_gate_up), gpu.product(self.shared_down)
        x.add_gated(*products, given, step, scale=self.shared_scale(given))

    def shared_weights(self, gpu: "GpuKernels") -> "tuple[Weights | None, bool]":
        first, last = (gpu.product(each).unquantized for each in (self.shared_gate_up, self.shared_down))
        return (None, False) if first is None or last is None else ((first, last), True)

    def shared_scale(self, x: Tensor) -> Tensor | None:
        """Return what each row's output of that expert is multiplied with, [rows, 1]."""
        return None

    def shared(self, x: Tensor) -> Tensor:
        """Return the output of the expert that serves all tokens."""
        out: Tensor = self.shared_down(self.gated(self.shared_gate_up(x)))
        scale = self.shared_scale(x)
        return out if scale is None else out * scale


class WeighedInputMoE(SharedMoE):
    """The experts of Llama 4: a sigmoid of its score multiplies what each chosen expert reads."""

    sigmoid, weighs_inputs = True, True

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, experts = self.router(x.float()).topk(self.spec.chosen)
        return sigmoid(scores), experts


class ScaledSharedMoE(SharedMoE):
    """The expert that serves all tokens is scaled by a gate of its own."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.shared_gate = ExactLinear.wide(config.hidden, 1)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        scale = SourceTensor(self.names["shared.scale"], 1, WHOLE)
        return {**super().pieces(), "shared_gate": (scale,)}

    def shared_weights(self, gpu: "GpuKernels") -> "tuple[Weights | None, bool]":
        return None, False

    def shared_scale(self, x: Tensor) -> Tensor | None:
        return sigmoid(self.shared_gate(x.float())).to(x.dtype)


class GroupChoice(MoE):
    """A token chooses from the experts of some groups, those with the highest score of an expert."""

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(x.float()).softmax(-1)
        experts = self.chosen(scores, best=self.best)
        return scores.gather(1, experts) * self.spec.scaling, experts

    def chosen(self, scores: Tensor, best: int) -> Tensor:
        """[tokens, experts] -> [tokens, chosen]; a group's score is the sum of its `best` experts' scores."""
        spec = self.spec
        if spec.groups > 1:
            grouped = scores.unflatten(1, (spec.groups, -1))
            groups = grouped.topk(best).values.sum(-1).topk(spec.chosen_groups).indices
            hidden = torch.ones(grouped.shape[:2], dtype=torch.bool, device=scores.device)
            hidden.scatter_(1, groups, False)
            scores = grouped.masked_fill(hidden[..., None], -torch.inf).flatten(1)
        return scores.topk(spec.chosen).indices


class GroupedMoE(GroupChoice, SharedMoE):
    """Beside an expert for all tokens."""


class LoneBiasedMoE(GroupChoice):
    """Scores are sigmoids. A learned bias takes part in the choice of experts, but not in their weights."""

    sigmoid, best = True, 2

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.router_bias = parameter(self.spec.count, dtype=torch.float32)

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        bias = SourceTensor(self.names["router.bias"], self.spec.count, WHOLE)
        return {**super().pieces(), "router_bias": (bias,)}

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = sigmoid(self.router(x.float()))
        experts = self.chosen(scores + self.router_bias, best=self.best)
        weights = scores.gather(1, experts)
        if self.spec.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.spec.scaling, experts

    def choice_bias(self) -> Tensor | None:
        return self.router_bias


class BiasedMoE(LoneBiasedMoE, GroupedMoE):
    """Beside an expert for all tokens."""


class UngatedMoE(BiasedMoE):
    """The experts of Nemotron-H: two products around an activation."""

    inner, kernel = ("up",), "relu2"

    def gated(self, gate_up: Tensor) -> Tensor:
        return self.activate(gate_up)

    def gate(self) -> Mapping[str, Any]:
        return {"squared": True}

    def add_shared(self, x: "Residual", given: Tensor, step: "GpuStep", gpu: "GpuKernels") -> None:
        up = gpu.product(self.shared_gate_up).parts(given, pdl=step.pdl)
        act = gpu.relu2(up, x.stream.dtype, pdl=step.pdl)
        x.add_product(gpu.product(self.shared_down), act, step)


class ClampedMoE(MoE):
    """The experts of gpt-oss: gates and products alternate and are clamped; each is one tensor for all."""

    def __init__(self, config: DecoderConfig, index: int, build: Build) -> None:
        super().__init__(config, index, build)
        self.alpha: float = config.settings["alpha"]
        self.limit: float = config.settings["limit"]

    def pieces(self) -> Mapping[str, tuple[SourceTensor, ...]]:
        hidden, names, count = self.hidden, self.names, self.spec.count
        rows, columns = Sharding("rows", stacked=True), Sharding("columns", stacked=True)
        return {
            "norm": (SourceTensor(names["feed_forward.norm"], hidden, WHOLE),),
            "router": (SourceTensor(names["router"], count, WHOLE),),
            "gate_up": (SourceTensor(names["experts.gate_up"], 2 * count * self.width, rows, stacked=count),),
            "down": (SourceTensor(names["experts.down"], count * hidden, columns, stacked=count),),
        }

    def gated(self, gate_up: Tensor) -> Tensor:
        gate = gate_up[:, ::2].clamp(max=self.limit)
        up = gate_up[:, 1::2].clamp(-self.limit, self.limit)
        return (up + 1).mul_(gate * sigmoid(gate * self.alpha))

    def gate(self) -> Mapping[str, Any]:
        return {"alternating": True, "alpha": self.alpha, "limit": self.limit}
