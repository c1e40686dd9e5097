"""Kinds of mixtures of experts: what they read from config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.api.config import ExpertsSpec
from engine.models.fields import MOST_LAYERS, MOST_WIDTH, Fields
from engine.models.kinds.base import Flag
from engine.models.kinds.feed_forward import activation_of
from engine.models.kinds.mamba import MLP, MOE, by_pattern

if TYPE_CHECKING:
    from engine.models.layers.part import Part

MOST_EXPERTS = 4096
_COUNTS = ("num_experts", "num_local_experts")  # the fields with their number


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A feed-forward of experts, in all layers or in some."""

    count: str = "num_experts"  # transformers writes either of two names for some families
    width: str = "moe_intermediate_size"
    normalized: bool | Flag = ("norm_topk_prob", False)
    shared: str = ""  # the field with the width of an expert for all tokens
    mixed: bool = False  # some layers may be dense
    dense_width: bool = True  # whether config.json has the width of dense feed-forwards

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        key = next((key for key in _COUNTS if fields.get(key) is not None), self.count)
        count = fields.whole(key, high=MOST_EXPERTS)
        chosen = fields.whole("num_experts_per_tok", high=MOST_EXPERTS)
        if chosen > count:
            raise fields.bad("num_experts_per_tok", f"must be at most {count}, as in {key}")
        normalized = self.normalized
        return {
            "mlp": fields.whole("intermediate_size", high=MOST_WIDTH) if self.dense_width else 0,
            "activation": activation_of(fields, "hidden_act", "silu"),
            "dense": _dense(fields, layers) if self.mixed else (),
            "experts": ExpertsSpec(
                count=count,
                chosen=chosen,
                width=fields.whole(self.width, high=MOST_WIDTH),
                normalized=fields.flag(*normalized) if isinstance(normalized, tuple) else normalized,
                shared=fields.whole(self.shared, high=MOST_WIDTH) if self.shared else 0,
            ),
        }

    def part(self) -> type[Part]:
        from engine.models.layers import moe

        return moe.ScaledSharedMoE if self.shared else moe.MoE


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedByGroup(Routed):
    """The experts of DeepSeek: a token chooses groups of experts first, and some experts serve all tokens."""

    count: str = "n_routed_experts"
    biased: bool = False  # scores are sigmoids, and a learned bias takes part in the choice
    groups: tuple[int, int] = (1, 1)  # the default number of groups, and of those that a token chooses
    scaling: float = 1.0
    first: int = 0  # how many layers at the front are dense

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        self._check(fields)
        found = Routed.read(self, fields, layers)
        spec: ExpertsSpec = found["experts"]
        groups, chosen = (
            fields.whole(key, default, high=MOST_EXPERTS)
            for key, default in zip(("n_group", "topk_group"), self.groups, strict=True)
        )
        if not self.biased and fields.text("topk_method", "greedy") == "greedy":
            groups = chosen = 1
        if spec.count % groups or (self.biased and spec.count // groups < 2):
            raise fields.bad("n_group", f"must divide the {spec.count} experts into equal groups")
        if chosen > groups or spec.chosen > spec.count // groups * chosen:
            raise fields.bad("topk_group", f"must leave {spec.chosen} experts, and be at most {groups}")
        spec = replace(
            spec,
            groups=groups,
            chosen_groups=chosen,
            scaling=fields.real("routed_scaling_factor", self.scaling),
            shared=fields.whole("n_shared_experts", high=MOST_EXPERTS) * spec.width,
        )
        return {**found, "experts": spec, "dense": self._dense(fields, layers)}

    def part(self) -> type[Part]:
        from engine.models.layers import moe

        return moe.BiasedMoE if self.biased else moe.GroupedMoE

    def _check(self, fields: Fields) -> None:
        """Refuse settings that transformers ignores, and what these models do not use."""
        able: dict[str, tuple[Any, ...]] = {
            "topk_method": ("noaux_tc",) if self.biased else ("greedy", "group_limited_greedy"),
            "scoring_func": ("sigmoid",) if self.biased else ("softmax",),
            "moe_layer_freq": (1,),
        }
        if not self.biased:
            able["norm_topk_prob"] = (False,)
        for key, values in able.items():
            if fields.get(key) is not None and fields.get(key) not in values:
                raise fields.unsupported(key, f"only {' and '.join(map(json.dumps, values))} is supported")

    def _dense(self, fields: Fields, layers: int) -> tuple[int, ...]:
        if fields.get("mlp_layer_types") is None:
            return tuple(range(fields.whole("first_k_dense_replace", self.first, low=0, high=MOST_LAYERS)))
        kinds = fields.list("mlp_layer_types")
        if len(kinds) != layers or any(kind not in ("dense", "sparse") for kind in kinds):
            raise fields.bad("mlp_layer_types", f"must list dense or sparse for each of the {layers} layers")
        return tuple(i for i, kind in enumerate(kinds) if kind == "dense")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedClamped(Routed):
    """The experts of gpt-oss."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        given = {
            key: fields.real(f"swiglu_{key}", default) for key, default in (("alpha", 1.702), ("limit", 7.0))
        }
        return {**Routed.read(self, fields, layers), "mlp_bias": True, "settings": given}

    def part(self) -> type[Part]:
        from engine.models.layers.moe import ClampedMoE

        return ClampedMoE


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedBiased(Routed):
    """The experts of LFM2: scores are sigmoids, and a learned bias takes part in the choice."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        if not fields.flag("use_expert_bias", True):
            raise fields.unsupported("use_expert_bias", "only true is supported")
        found = Routed.read(self, fields, layers)
        scaling = fields.real("routed_scaling_factor", 1.0)
        dense = fields.whole("num_dense_layers", 2, low=0, high=MOST_LAYERS)
        return {
            **found,
            "experts": replace(found["experts"], scaling=scaling),
            "dense": tuple(range(min(dense, layers))),
        }

    def part(self) -> type[Part]:
        from engine.models.layers.moe import LoneBiasedMoE

        return LoneBiasedMoE


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedInputs(Routed):
    """The experts of Llama 4 beside one that serves all tokens, in all layers or at an interval."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        every = fields.whole("interleave_moe_layer_step", 1, high=MOST_LAYERS)
        routed = fields.list("moe_layers", [i for i in range(layers) if (i + 1) % every == 0])
        if any(not isinstance(each, int) or isinstance(each, bool) for each in routed):
            raise fields.bad("moe_layers", "must list numbers of layers")
        return {
            **Routed.read(self, fields, layers),
            "mlp": fields.whole("intermediate_size_mlp", 16_384, high=MOST_WIDTH),
            "dense": tuple(i for i in range(layers) if i not in routed),
        }

    def part(self) -> type[Part]:
        from engine.models.layers.moe import WeighedInputMoE

        return WeighedInputMoE


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedIfAny(Routed):
    """Experts beside one that serves all tokens, or only that one, if config.json has no others."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        if fields.get(self.count) != 0:
            return Routed.read(self, fields, layers)
        return {
            "mlp": fields.whole(self.shared, high=MOST_WIDTH),
            "activation": activation_of(fields, "hidden_act", "silu"),
            "dense": tuple(range(layers)),
        }

    def part(self) -> type[Part]:
        from engine.models.layers.moe import SharedMoE

        return SharedMoE


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedUngated(RoutedByGroup):
    """The experts of Nemotron-H: two products around an activation, in the layers that config.json names."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        kinds = by_pattern(fields)
        biased = fields.flag("mlp_bias", False)
        found = {
            "mlp": fields.whole("intermediate_size", high=MOST_WIDTH),
            "mlp_bias": biased,
            "activation": activation_of(fields, "mlp_hidden_act", "relu2"),
            "dense": tuple(index for index, kind in enumerate(kinds) if kind == MLP),
        }
        if MOE not in kinds:
            return found
        for key in ("mlp_bias", "moe_latent_size"):
            if fields.get(key):
                raise fields.unsupported(key, "experts have no biases and read no latents")
        spec: ExpertsSpec = RoutedByGroup.read(self, fields, layers)["experts"]
        shared = fields.whole("moe_shared_expert_intermediate_size", high=MOST_WIDTH)
        return {**found, "experts": replace(spec, shared=shared)}

    def part(self) -> type[Part]:
        from engine.models.layers.moe import UngatedMoE

        return UngatedMoE


def _dense(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return the layers without experts."""
    every = fields.whole("decoder_sparse_step", 1, high=MOST_LAYERS)
    listed = fields.list("mlp_only_layers", [])
    if any(not isinstance(each, int) or isinstance(each, bool) for each in listed):
        raise fields.bad("mlp_only_layers", "must list numbers of layers")
    return tuple(i for i in range(layers) if i in listed or (i + 1) % every)
