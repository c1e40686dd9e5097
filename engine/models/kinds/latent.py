"""The kind of attention that caches latents: what it reads from config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.api.cache_spec import CacheSpec
from engine.api.config import LatentSpec
from engine.models.fields import MOST_HEAD_DIM, MOST_HEADS, MOST_WIDTH, Fields
from engine.models.kinds.rope import scaling_of

if TYPE_CHECKING:
    from engine.models.layers.part import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Attention over latents, and its defaults for config.json."""

    rank: int = 512
    query_rank: int = 1536
    unrotated: int = 128
    rotated: int = 64
    value: int | None = 128  # None: hidden size / heads

    def read(self, fields: Fields, layers: int) -> Mapping[str, Any]:
        if fields.flag("attention_bias", False):
            raise fields.unsupported("attention_bias", "only false is supported")
        heads = fields.whole("num_attention_heads", high=MOST_HEADS)
        direct = fields.given("q_lora_rank") and fields.get("q_lora_rank") is None
        value = self.value or fields.whole("hidden_size", high=MOST_WIDTH) // heads
        sizes = LatentSpec(
            rank=fields.whole("kv_lora_rank", self.rank, high=MOST_WIDTH),
            rotated=fields.whole("qk_rope_head_dim", self.rotated, high=MOST_HEAD_DIM),
            unrotated=fields.whole("qk_nope_head_dim", self.unrotated, high=MOST_HEAD_DIM),
            value=fields.whole("v_head_dim", value, high=MOST_HEAD_DIM),
            query_rank=0 if direct else fields.whole("q_lora_rank", self.query_rank, high=MOST_WIDTH),
        )
        spec = CacheSpec(
            heads=heads,
            kv_heads=1,
            key_dim=sizes.rank + sizes.rotated,
            value_dim=sizes.rank,
            scale=(sizes.unrotated + sizes.rotated) ** -0.5 * _sharpened(fields),
            latent=True,
        )
        return {"layers": (spec,) * layers, "latent": sizes}

    def part(self) -> type[Part]:
        from engine.models.layers.latent import LatentAttention

        return LatentAttention


def _sharpened(fields: Fields) -> float:
    """Return the factor of the scores in a context that yarn extends."""
    scaling = scaling_of(fields)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default" or not scaling.get("mscale_all_dim"):
        return 1.0
    factor, by = scaling.real("factor", 1.0), scaling.real("mscale_all_dim")
    return (0.1 * by * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
