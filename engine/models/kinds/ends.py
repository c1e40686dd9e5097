"""What surrounds a family's parts, from config.json. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.models.fields import MOST_LAYERS, MOST_WIDTH, Fields
from engine.models.kinds.base import Real, optional


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What surrounds the parts: scales of embeddings, of each part's term and of logits, and their cap."""

    eps: Real = ("rms_norm_eps", 1e-6)
    embed_scale: Real | None = None
    embed_by_width: bool = False  # embeddings are scaled by the root of their width
    residual_scale: Real | None = None
    logit_scale: Real | None = None
    logit_divisor: Real | None = None
    logit_cap: tuple[str, float | None] | None = None

    @property
    def scales_terms(self) -> bool:
        """Whether each part's term is scaled."""
        return self.residual_scale is not None

    def read(self, fields: Fields) -> Mapping[str, Any]:
        found: dict[str, Any] = {"norm_eps": fields.real(*self.eps, high=1.0)}
        for name in ("embed_scale", "residual_scale", "logit_scale"):
            if (given := getattr(self, name)) is not None:
                found[name] = fields.real(*given)
        if self.embed_by_width:
            found["embed_scale"] = fields.whole("hidden_size", high=MOST_WIDTH) ** 0.5
        if self.logit_divisor is not None:
            found["logit_scale"] = 1 / fields.real(*self.logit_divisor)
        if self.logit_cap is not None:
            found["logit_cap"] = optional(fields, *self.logit_cap)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsBySize(Ends):
    """Ends whose scales depend on the number of layers and the width, with their defaults; null: 1."""

    depth: float = 1.4
    width: float = 256

    @property
    def scales_terms(self) -> bool:
        return True

    def read(self, fields: Fields) -> Mapping[str, Any]:
        layers = fields.whole("num_hidden_layers", high=MOST_LAYERS)
        depth = optional(fields, "scale_depth", self.depth)
        width = optional(fields, "dim_model_base", self.width)
        return {
            **Ends.read(self, fields),
            "residual_scale": 1.0 if depth is None else depth / layers**0.5,
            "logit_scale": 1.0 if width is None else width / fields.whole("hidden_size", high=MOST_WIDTH),
        }
