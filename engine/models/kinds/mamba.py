"""The kind of a Mamba-2 layer, a state space: what it reads from config.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.api.cache_spec import CacheSpec, StateSpec
from engine.models.fields import MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Fields
from engine.models.kinds.base import Flag
from engine.models.kinds.linear import FULL, LINEAR

if TYPE_CHECKING:
    from engine.models.layers.part import Part

Whole = tuple[str, int]  # a field's name and its default
MOST_TAPS, MOST_STATE = 16, 256
MLP, MOE = "mlp", "moe"  # kinds of layers that are only a feed-forward
_OLD = {"mamba": LINEAR, "attention": FULL}  # older names of kinds
_SIGNS = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}  # in a pattern of all layers

LayerKinds = Callable[[Fields], Sequence[str]]


def listed(fields: Fields) -> Sequence[str]:
    """A list of the layers' kinds; without one, all are state spaces."""
    count = fields.whole("num_hidden_layers", high=MOST_LAYERS)
    key = next((key for key in ("layer_types", "layers_block_type") if fields.get(key) is not None), None)
    kinds = [LINEAR] * count if key is None else _named(fields, key, (LINEAR, FULL))
    if len(kinds) != count or FULL not in kinds:
        rule = f"must list {LINEAR} or {FULL} for each of the {count} layers, and {FULL} at least once"
        raise fields.bad(key or "layer_types", rule)
    return kinds


def all_states(fields: Fields) -> Sequence[str]:
    return [LINEAR] * fields.whole("num_hidden_layers", high=MOST_LAYERS)


def by_index(fields: Fields) -> Sequence[str]:
    """A list of the layers with attention."""
    count = fields.whole("num_hidden_layers", high=MOST_LAYERS)
    indices = fields.list("attn_layer_indices")
    if not indices or any(type(each) is not int or not 0 <= each < count for each in indices):
        raise fields.bad("attn_layer_indices", f"must list at least one of the {count} layers")
    return [FULL if index in indices else LINEAR for index in range(count)]


def by_pattern(fields: Fields) -> Sequence[str]:
    """A list of the layers' kinds or a sign for each. Some layers are only a feed-forward."""
    if fields.get("layers_block_type") is None and fields.get("hybrid_override_pattern") is not None:
        signs = fields.text("hybrid_override_pattern")
        if not 0 < len(signs) <= MOST_LAYERS or not set(signs) <= _SIGNS.keys():
            raise fields.bad(
                "hybrid_override_pattern", f"must have a sign of {' '.join(_SIGNS)} for each layer"
            )
        kinds: Sequence[str] = [_SIGNS[sign] for sign in signs]
    else:
        kinds = _named(fields, "layers_block_type", (LINEAR, FULL, MLP, MOE))
    if FULL not in kinds:
        raise fields.unsupported("layers_block_type", f"at least one must be {FULL}")
    return kinds


def _named(fields: Fields, key: str, able: tuple[str, ...]) -> Sequence[str]:
    found = fields.list(key)
    kinds = [_OLD.get(kind, kind) if isinstance(kind, str) else "" for kind in found]
    if not 0 < len(kinds) <= MOST_LAYERS or any(kind not in able for kind in kinds):
        raise fields.bad(key, f"must list {', '.join(able[:-1])} or {able[-1]} for each layer")
    return kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """A state space, in the layers that config.json names."""

    kinds: LayerKinds = listed
    heads: Whole = ("mamba_n_heads", 128)
    groups: Whole = ("mamba_n_groups", 1)
    dim: str = "mamba_d_head"  # "auto": the width / heads
    width: str = "mamba_expand"  # times the hidden size; empty: whatever all heads have
    state: Whole = ("mamba_d_state", 256)
    taps: Whole = ("mamba_d_conv", 4)
    conv_bias: Flag = ("mamba_conv_bias", True)
    bias: Flag = ("mamba_proj_bias", False)  # of both products
    activation: str = "hidden_act"
    shortest: str = ""  # the field with the least step size; empty: `time_step_limit` has both limits

    def count(self, fields: Fields) -> int:
        return len(self.kinds(fields))

    def among(self, fields: Fields, layers: Sequence[CacheSpec]) -> tuple[CacheSpec, ...]:
        state, nothing = CacheSpec.of_state(self._state(fields)), CacheSpec.of_nothing()
        kinds = zip(self.kinds(fields), layers, strict=True)
        return tuple({LINEAR: state, FULL: each}.get(kind, nothing) for kind, each in kinds)

    def read(self, fields: Fields, layers: Sequence[CacheSpec]) -> Mapping[str, Any]:
        if fields.text(self.activation, "silu") not in ("silu", "swish"):
            raise fields.unsupported(self.activation, "only silu is supported in layers with a state")
        settings = {
            "conv_bias": fields.flag(*self.conv_bias),
            "state_bias": fields.flag(*self.bias),
            "steps": self._steps(fields),
        }
        return {"settings": settings}

    def part(self) -> type[Part]:
        from engine.models.layers.mamba import MambaMixer

        return MambaMixer

    def _state(self, fields: Fields) -> StateSpec:
        heads = fields.whole(*self.heads, high=MOST_HEADS)
        found = StateSpec(
            heads=heads,
            key_heads=fields.whole(*self.groups, high=MOST_HEADS),
            key_dim=fields.whole(*self.state, high=MOST_STATE),
            value_dim=self._dim(fields, heads),
            taps=fields.whole(*self.taps, low=2, high=MOST_TAPS),
        )
        if heads % found.key_heads:
            raise fields.bad(self.heads[0], f"must be a multiple of the {found.key_heads} groups")
        return found

    def _dim(self, fields: Fields, heads: int) -> int:
        if not self.width:
            return fields.whole(self.dim, 64, high=MOST_HEAD_DIM)
        width = self._width(fields)
        if fields.get(self.dim) in (None, "auto") and width % heads == 0:
            return width // heads
        if (dim := fields.whole(self.dim, high=MOST_HEAD_DIM)) * heads != width:
            raise fields.bad(self.dim, f"must be {width} / {heads}, the width by the heads")
        return dim

    def _width(self, fields: Fields) -> int:
        hidden = fields.whole("hidden_size", high=MOST_WIDTH)
        return fields.whole(self.width, 2, high=MOST_HEAD_DIM) * hidden

    def _steps(self, fields: Fields) -> tuple[float, float]:
        """The least and the greatest step size."""
        if self.shortest:
            return fields.real(self.shortest, 0.001, above=-1.0), math.inf
        limits = [_number(each) for each in fields.list("time_step_limit", [0.0, math.inf])]
        if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
            raise fields.bad("time_step_limit", "must be two numbers, the least and the greatest")
        return limits[0], limits[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyMamba:
    """State spaces in all layers, in place of attention."""

    kind: Mamba

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        specs = self.kind.among(fields, (CacheSpec.of_nothing(),) * layers)
        return {"layers": specs, **self.kind.read(fields, specs)}

    def part(self) -> type[Part]:
        return self.kind.part()


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideAttention(Mamba):
    """The layers of Falcon-H1: a state space and attention read the same, with factors everywhere."""

    kinds: LayerKinds = all_states

    def among(self, fields: Fields, layers: Sequence[CacheSpec]) -> tuple[CacheSpec, ...]:
        state, factor = self._state(fields), fields.real("key_multiplier", 1.0)
        return tuple(replace(each, state=state, scale=each.scale * factor) for each in layers)

    def read(self, fields: Fields, layers: Sequence[CacheSpec]) -> Mapping[str, Any]:
        found = Mamba.read(self, fields, layers)
        normed, first = fields.flag("mamba_rms_norm", False), fields.flag("mamba_norm_before_gate", True)
        keys = ("ssm_in", "ssm_out", "attention_in", "attention_out")
        settings = {
            "norm": ("norm first" if first else "gate first") if normed else "none",
            "state_out_bias": fields.flag("projectors_bias", False),
            "factors": {key: fields.real(f"{key}_multiplier", 1.0) for key in keys},
            "state_factors": _factors(fields, "ssm_multipliers", 5),
            "mlp_factors": _factors(fields, "mlp_multipliers", 2),
        }
        return {"settings": found["settings"] | settings}

    def part(self) -> type[Part]:
        from engine.models.layers.mamba import ParallelMixer

        return ParallelMixer

    def _width(self, fields: Fields) -> int:
        if fields.get("mamba_d_ssm") is not None:
            return fields.whole("mamba_d_ssm", high=MOST_WIDTH)
        return Mamba._width(self, fields)


def _factors(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    found = fields.list(key, [1.0] * count)
    if len(found) != count or any(type(each) not in (int, float) or not 0 < each < 1e12 for each in found):
        raise fields.bad(key, f"must list {count} numbers above 0")
    return tuple(map(float, found))


def _number(value: Any) -> float:
    """A number; transformers writes one that JSON lacks as an object."""
    if isinstance(value, dict):
        value = math.inf if value == {"__float__": "Infinity"} else None
    return float(value) if type(value) in (int, float) else math.nan
