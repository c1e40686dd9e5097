"""Kinds of mixtures of experts: what they read from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.api.config import ExpertsSpec
from engine.models.fields import MOST_LAYERS, MOST_WIDTH, Fields
from engine.models.kinds.base import Flag
from engine.models.kinds.feed_forward import activation_of

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

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        key = next((key for key in _COUNTS if fields.get(key) is not None), self.count)
        count = fields.whole(key, high=MOST_EXPERTS)
        chosen = fields.whole("num_experts_per_tok", high=MOST_EXPERTS)
        if chosen > count:
            raise fields.bad("num_experts_per_tok", f"must be at most {count}, as in {key}")
        normalized = self.normalized
        return {
            "mlp": fields.whole("intermediate_size", high=MOST_WIDTH),
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

        return moe.SharedMoE if self.shared else moe.MoE


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


def _dense(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return the layers without experts."""
    every = fields.whole("decoder_sparse_step", 1, high=MOST_LAYERS)
    listed = fields.list("mlp_only_layers", [])
    if any(not isinstance(each, int) or isinstance(each, bool) for each in listed):
        raise fields.bad("mlp_only_layers", "must list numbers of layers")
    return tuple(i for i in range(layers) if i in listed or (i + 1) % every)
