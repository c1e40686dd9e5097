"""The kinds of parts a family's table lists: what each reads from config.json, and its class.

Needs no torch until a class is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from engine.api.config import CacheSpec
from engine.models.fields import MOST_HEAD_DIM, MOST_HEADS, MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, Fields

if TYPE_CHECKING:
    from engine.models.layers.part import Part

Windows = Callable[[Fields, int], tuple[int | None, ...]]


class PartKind(Protocol):
    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        """Return the DecoderConfig fields the part reads from config.json. Raises if they are unsupported."""

    def part(self) -> type[Part]:
        """Return the part's class, imported on demand."""


def no_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    return (None,) * layers


def one_window(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """The same window in all layers, unless config.json has a null for it."""
    windowed = fields.get("sliding_window") or not fields.given("sliding_window")
    return (_window(fields) if windowed else None,) * layers


def windows_by_layer(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Mixed full and sliding layers: listed by name, or sliding from one layer on."""

    def sliding() -> range:
        return range(fields.whole("max_window_layers", 28, low=0, high=MOST_TOKENS), layers)

    return _mixed(fields, layers, sliding)


def windows_where_unrotated(fields: Fields, layers: int) -> tuple[int | None, ...]:
    return _mixed(fields, layers, lambda: unrotated(fields, layers))


def _mixed(fields: Fields, layers: int, sliding: Callable[[], Sequence[int]]) -> tuple[int | None, ...]:
    """Use the layer types in config.json, or `sliding` if it has none."""
    if not fields.flag("use_sliding_window", False):
        return (None,) * layers
    window = _window(fields)
    if fields.get("layer_types") is None:
        slides = sliding()
        return tuple(window if i in slides else None for i in range(layers))
    kinds = fields.list("layer_types")
    if len(kinds) != layers:
        raise fields.bad("layer_types", f"must list {layers} layers, as in num_hidden_layers")
    if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        raise fields.unsupported("layer_types", "only full_attention and sliding_attention are supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _window(fields: Fields) -> int:
    return fields.whole("sliding_window", 4096, high=MOST_TOKENS)


def unrotated(fields: Fields, layers: int) -> tuple[int, ...]:
    """Return the layers without rotary positions."""
    interval = fields.whole("no_rope_layer_interval", 4, high=MOST_LAYERS)
    rotated = fields.list("no_rope_layers", [int((i + 1) % interval != 0) for i in range(layers)])
    if len(rotated) < layers or any(mark not in (0, 1) for mark in rotated):
        raise fields.bad("no_rope_layers", f"must mark each of the {layers} layers with 1 (rotary) or 0")
    return tuple(i for i in range(layers) if not rotated[i])


def all_rotated(fields: Fields, layers: int) -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Attention with groups of query heads that share a key and value head."""

    windows: Windows = no_windows
    unrotated: Callable[[Fields, int], tuple[int, ...]] = all_rotated
    biased: bool = False  # `attention_bias` sets whether all products have a bias
    qkv_bias: bool = False  # whether the product of queries, keys and values has a bias
    qk_norm: bool = False
    head_dim: int | None = None  # None: hidden size / heads

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        bias = self.biased and fields.flag("attention_bias", False)
        unrotated, windows = self.unrotated(fields, layers), self.windows(fields, layers)
        context = fields.whole("max_position_embeddings", high=MOST_TOKENS)
        heads, kv_heads = _heads(fields)
        dim = self._head_dim(fields, heads)
        return {
            "layers": tuple(
                CacheSpec(
                    heads=heads,
                    kv_heads=kv_heads,
                    key_dim=dim,
                    value_dim=dim,
                    scale=dim**-0.5,
                    window=window if window and window < context else None,
                )
                for window in windows
            ),
            "qkv_bias": bias or self.qkv_bias,
            "out_bias": bias,
            "qk_norm": self.qk_norm,
            "unrotated": unrotated,
        }

    def part(self) -> type[Part]:
        from engine.models.layers.attention import GroupedAttention

        return GroupedAttention

    def _head_dim(self, fields: Fields, heads: int) -> int:
        hidden, default = fields.whole("hidden_size", high=MOST_WIDTH), self.head_dim
        if default is None or fields.given("head_dim"):  # a null means hidden size / heads
            default = hidden // heads if hidden % heads == 0 else None
        dim = fields.whole("head_dim", default, high=MOST_HEAD_DIM)
        if dim % 2:
            raise fields.bad("head_dim", "must be even for rotary positions")
        return dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A feed-forward that is applied to all tokens."""

    biased: bool = False  # `mlp_bias` sets whether all products have a bias

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        if fields.text("hidden_act", "silu") not in ("silu", "swish"):
            raise fields.unsupported("hidden_act", "only silu is supported")
        width = fields.whole("intermediate_size", high=MOST_WIDTH)
        return {"mlp": width, "mlp_bias": self.biased and fields.flag("mlp_bias", False)}

    def part(self) -> type[Part]:
        from engine.models.layers.mlp import DenseMLP

        return DenseMLP


def _heads(fields: Fields) -> tuple[int, int]:
    heads = fields.whole("num_attention_heads", high=MOST_HEADS)
    kv_heads = fields.whole("num_key_value_heads", heads, high=MOST_HEADS)
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", f"must divide the {heads} attention heads")
    return heads, kv_heads
