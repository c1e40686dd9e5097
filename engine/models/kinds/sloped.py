"""Attention whose scores fall with the distance of tokens (ALiBi): what it reads from config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.api.cache_spec import CacheSpec
from engine.models.fields import MOST_HEADS, MOST_WIDTH, Fields

if TYPE_CHECKING:
    from engine.models.layers.part import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Sloped:
    """The attention of Bloom: each head has keys and values of its own, and all products have biases."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        refuse(fields, {"apply_residual_connection_post_layernorm": (False,)})
        heads, dim = _heads(fields)
        return _found(heads, dim, layers, bloom_slopes(heads), by_head=True, biased=True)

    def part(self) -> type[Part]:
        from engine.models.layers.attention import SlopedAttention

        return SlopedAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopedMpt(Sloped):
    """The attention of MPT, whose fields are in an object of their own."""

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        refuse(fields, {"no_bias": (True,), "logit_scale": (), "expansion_ratio": (4,)})
        inner = fields.inside("attn_config")
        able = {"attn_type": ("multihead_attention",), "alibi": (True,)}
        refuse(inner, able | dict.fromkeys(("qk_ln", "prefix_lm", "attn_uses_sequence_id"), (False,)))
        heads, dim = _heads(fields)
        slopes = mpt_slopes(heads, inner.whole("alibi_bias_max", 8, high=64))
        clip = inner.real("clip_qkv") if inner.get("clip_qkv") is not None else None
        scale = inner.real("softmax_scale", dim**-0.5)
        return _found(heads, dim, layers, slopes, clip=clip, scale=scale)


def _heads(fields: Fields) -> tuple[int, int]:
    """Return the number of heads and their width."""
    heads = fields.whole("num_attention_heads", high=MOST_HEADS)
    hidden = fields.whole("hidden_size", high=MOST_WIDTH)
    if hidden % heads:
        raise fields.bad("num_attention_heads", f"must divide the hidden size, {hidden}")
    return heads, hidden // heads


def _found(
    heads: int,
    dim: int,
    layers: int,
    slopes: tuple[float, ...],
    *,
    scale: float | None = None,
    by_head: bool = False,
    biased: bool = False,
    clip: float | None = None,
) -> Mapping[str, Any]:
    spec = CacheSpec(
        heads=heads, kv_heads=heads, key_dim=dim, value_dim=dim, scale=scale or dim**-0.5, slopes=slopes
    )
    return {
        "layers": (spec,) * layers,
        "unrotated": tuple(range(layers)),
        "qkv_bias": biased,
        "out_bias": biased,
        "settings": {"by_head": by_head, "clip": clip},
    }


def refuse(fields: Fields, able: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise if a field has another value than these, or null."""
    for key, values in able.items():
        if fields.get(key) is not None and fields.get(key) not in values:
            what = " and ".join(("null", *map(str, values))).lower()
            raise fields.unsupported(key, f"only {what} are supported")


def bloom_slopes(heads: int) -> tuple[float, ...]:
    """Powers of a base; heads beyond a power of two have those between."""
    most = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * n / most) for n in range(1, most + 1)]
    return (*slopes, *(2.0 ** (-4 * n / most) for n in range(1, 2 * (heads - most), 2)))


def mpt_slopes(heads: int, steepest: int) -> tuple[float, ...]:
    """The same for MPT, which takes every other one first. `steepest`: the exponent of the last."""
    most = 1 << math.ceil(math.log2(heads))
    slopes = [2.0 ** (-n * steepest / most) for n in range(1, most + 1)]
    return tuple(slopes if most == heads else (slopes[1::2] + slopes[::2])[:heads])
