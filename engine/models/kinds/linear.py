"""The kinds of layers with a recurrent state: what they read from config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from engine.api.cache_spec import CacheSpec, StateSpec
from engine.models.fields import MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Fields

if TYPE_CHECKING:
    from engine.models.layers.part import Part

LINEAR, FULL, CONV = "linear_attention", "full_attention", "conv"
MOST_TAPS = 64


class StateKind(Protocol):
    def count(self, fields: Fields) -> int:
        """Return the number of layers."""

    def among(self, fields: Fields, layers: Sequence[CacheSpec]) -> tuple[CacheSpec, ...]:
        """Return the layers' specs, given those that they would have with attention."""

    def read(self, fields: Fields, layers: Sequence[CacheSpec]) -> Mapping[str, Any]:
        """Return the other DecoderConfig fields that the part reads from config.json."""

    def part(self) -> type[Part]:
        """Return the part's class, imported on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """The gated delta rule, in the layers that config.json lists; by default in three of four."""

    interleaved: bool = False  # whether a checkpoint's tensors are ordered by key head

    def count(self, fields: Fields) -> int:
        return fields.whole("num_hidden_layers", high=MOST_LAYERS)

    def read(self, fields: Fields, layers: Sequence[CacheSpec]) -> Mapping[str, Any]:
        return {}

    def among(self, fields: Fields, layers: Sequence[CacheSpec]) -> tuple[CacheSpec, ...]:
        kinds = _kinds(fields, len(layers))
        if FULL not in kinds:
            raise fields.unsupported("layer_types", f"at least one must be {FULL}")
        spec = CacheSpec.of_state(_state(fields))
        return tuple(spec if kind == LINEAR else each for kind, each in zip(kinds, layers, strict=True))

    def part(self) -> type[Part]:
        from engine.models.layers import linear

        return linear.InterleavedLinearAttention if self.interleaved else linear.LinearAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolutions:
    """The convolutions of LFM2, in the layers that config.json lists."""

    def count(self, fields: Fields) -> int:
        return fields.whole("num_hidden_layers", high=MOST_LAYERS)

    def read(self, fields: Fields, layers: Sequence[CacheSpec]) -> Mapping[str, Any]:
        return {"settings": {"conv_bias": fields.flag("conv_bias", False)}}

    def among(self, fields: Fields, layers: Sequence[CacheSpec]) -> tuple[CacheSpec, ...]:
        key = "layer_types" if fields.get("layer_types") is not None else "full_attn_idxs"
        if key == "layer_types":
            kinds = fields.list(key)
        else:
            full = fields.list(key, list(range(len(layers))))
            kinds = [FULL if at in full else CONV for at in range(len(layers))]
        if len(kinds) != len(layers) or FULL not in kinds or any(kind not in (CONV, FULL) for kind in kinds):
            raise fields.bad(key, f"must list {CONV} or {FULL} for each layer, and {FULL} at least once")
        width = fields.whole("hidden_size", high=MOST_WIDTH)
        taps = fields.whole("conv_L_cache", 3, low=2, high=MOST_TAPS)
        state = StateSpec(heads=1, key_heads=1, key_dim=0, value_dim=width, taps=taps)
        spec = CacheSpec.of_state(state)
        return tuple(spec if kind == CONV else each for kind, each in zip(kinds, layers, strict=True))

    def part(self) -> type[Part]:
        from engine.models.layers.linear import ShortConv

        return ShortConv


def _kinds(fields: Fields, layers: int) -> list[str]:
    if fields.get("layer_types") is None:
        every = fields.whole("full_attention_interval", 4, high=MOST_LAYERS)
        return [FULL if (at + 1) % every == 0 else LINEAR for at in range(layers)]
    kinds = fields.list("layer_types")
    if len(kinds) != layers or any(kind not in (LINEAR, FULL) for kind in kinds):
        raise fields.bad("layer_types", f"must list {LINEAR} or {FULL} for each of the {layers} layers")
    return kinds


def _state(fields: Fields) -> StateSpec:
    found = StateSpec(
        heads=fields.whole("linear_num_value_heads", 32, high=MOST_HEADS),
        key_heads=fields.whole("linear_num_key_heads", 16, high=MOST_HEADS),
        key_dim=fields.whole("linear_key_head_dim", 128, high=MOST_HEAD_DIM),
        value_dim=fields.whole("linear_value_head_dim", 128, high=MOST_HEAD_DIM),
        taps=fields.whole("linear_conv_kernel_dim", 4, low=2, high=MOST_TAPS),
        replaces=True,
    )
    if found.heads % found.key_heads:
        raise fields.bad("linear_num_value_heads", f"must be a multiple of the {found.key_heads} key heads")
    return found
