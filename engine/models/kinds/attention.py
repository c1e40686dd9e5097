"""Kinds of attention: what they read from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from engine.api.cache_spec import CacheSpec
from engine.models.fields import MOST_HEAD_DIM, MOST_HEADS, MOST_TOKENS, MOST_WIDTH, Fields
from engine.models.kinds.base import Flag, Real, optional
from engine.models.kinds.rope import scaling_of
from engine.models.kinds.windows import (
    Unrotated,
    Windows,
    all_rotated,
    chunks_by_layer,
    no_windows,
    unrotated,
)

if TYPE_CHECKING:
    from engine.models.layers.part import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Attention with groups of query heads that share a key and value head."""

    windows: Windows = no_windows
    unrotated: Unrotated = all_rotated
    bias: Flag | None = None  # whether all products have a bias
    out_biased: bool = True  # `bias` also holds for the output product
    qkv_bias: bool = False  # whether the product of queries, keys and values always has a bias
    qk_norm: bool | Flag = False
    norm_weights: Literal["shared", "own", "wide"] = (
        "shared"  # by all heads; each head's; a norm over all heads
    )
    head_dim: int | None = None  # None: hidden size / heads
    scale: Real | None = None  # of the scores; None: head_dim**-0.5
    query_width: Real | None = None  # the field whose value replaces head_dim in that formula
    softcap: tuple[str, float | None] | None = None
    gated: bool = False  # whether its output has a gate, made with the queries
    sinks: bool = False  # whether heads have a learned score beside those of the keys

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        for key in ("use_bidirectional_attention", "clip_qkv"):
            if fields.get(key):
                raise fields.unsupported(key, "only null and false are supported")
        bias = self.bias is not None and fields.flag(*self.bias)
        windows = self.windows(fields, layers)
        context = fields.whole("max_position_embeddings", high=MOST_TOKENS)
        heads, kv_heads = _heads(fields)
        dim = self._head_dim(fields, heads)
        spec = CacheSpec(
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=dim,
            scale=self._scale(fields, dim),
            sinks=self.sinks,
            softcap=None if self.softcap is None else optional(fields, *self.softcap),
        )
        return {
            "layers": tuple(
                replace(spec, window=window if window and window < context else None) for window in windows
            ),
            "qkv_bias": bias or self.qkv_bias,
            "out_bias": bias and self.out_biased,
            "qk_norm": fields.flag(*self.qk_norm) if isinstance(self.qk_norm, tuple) else self.qk_norm,
            "unrotated": self.unrotated(fields, layers),
            "local": tuple(i for i, window in enumerate(windows) if window),
        }

    def part(self) -> type[Part]:
        from engine.models.layers import attention

        if self.gated:
            return attention.GatedAttention
        match self.norm_weights:
            case "own":
                return attention.OwnNormAttention
            case "wide":
                return attention.WideNormAttention
        return attention.GroupedAttention

    def _scale(self, fields: Fields, dim: int) -> float:
        if self.scale is not None:
            return fields.real(*self.scale)
        return (fields.real(*self.query_width) if self.query_width else dim) ** -0.5

    def _head_dim(self, fields: Fields, heads: int) -> int:
        hidden, default = fields.whole("hidden_size", high=MOST_WIDTH), self.head_dim
        if default is None or fields.given("head_dim"):  # a null means hidden size / heads
            default = hidden // heads if hidden % heads == 0 else None
        dim = fields.whole("head_dim", default, high=MOST_HEAD_DIM)
        if dim % 2:
            raise fields.bad("head_dim", "must be even for rotary positions")
        return dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Grouped):
    """The attention of Llama 4: some layers see only chunks of the text, and others have no positions."""

    unrotated: Unrotated = unrotated
    floor: int = 8192  # positions for which the queries of unrotated layers are scaled alike
    growth: float = 0.1  # of that scale

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        found = Grouped.read(self, fields, layers)
        chunks = chunks_by_layer(fields, layers, found["unrotated"])
        tuned = "attn_temperature_tuning"  # a number in some files, of which only 0 means no
        numbered = type(fields.get(tuned)) is int
        growing = fields.whole(tuned, low=0, high=MOST_TOKENS) > 0 if numbered else fields.flag(tuned, True)
        return {
            **found,
            "layers": tuple(
                replace(spec, chunk=chunk) for spec, chunk in zip(found["layers"], chunks, strict=True)
            ),
            "settings": {
                "normed": fields.flag("use_qk_norm", True),
                "floor": fields.whole("floor_scale", self.floor, high=MOST_TOKENS),
                "growth": fields.real("attn_scale", self.growth, above=-1e-9) if growing else 0.0,
            },
        }

    def part(self) -> type[Part]:
        from engine.models.layers.attention import GrowingAttention

        return GrowingAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengthened(Grouped):
    """The attention of Ministral 3: queries grow with each original context before them."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        scaling, newer = scaling_of(fields), fields.get("model_type") == "ministral3"
        if newer and not scaling.values:
            raise fields.bad("rope_parameters", "must tell how positions are rotated")
        beta, floor = "llama_4_scaling_beta", "original_max_position_embeddings"
        growing = newer and scaling.get(beta) is not None
        settings = {
            "growth": scaling.real(beta, above=-1e-9) if growing else 0.0,
            "floor": scaling.whole(floor, high=MOST_TOKENS) if growing else 1,
        }
        return {**Grouped.read(self, fields, layers), "settings": settings}

    def part(self) -> type[Part]:
        from engine.models.layers.attention import LengthenedAttention

        return LengthenedAttention


def _heads(fields: Fields) -> tuple[int, int]:
    heads = fields.whole("num_attention_heads", high=MOST_HEADS)
    kv_heads = fields.whole("num_key_value_heads", heads, high=MOST_HEADS)
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", f"must divide the {heads} attention heads")
    return heads, kv_heads
