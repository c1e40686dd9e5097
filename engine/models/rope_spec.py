"""Reads the rotary position settings of a config.json. Needs no torch."""

import math

from engine.api.config import RopeSpec
from engine.models.fields import MOST_TOKENS, Fields


def rope_spec(fields: Fields, context: int, theta: float) -> RopeSpec:
    """Read `rope_scaling` and `rope_theta`, or the newer `rope_parameters` that holds both."""
    scaling = fields.inside("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    if any(isinstance(value, dict) for value in scaling.values.values()):
        raise fields.unsupported(scaling.path.rstrip("."), "all layers must use the same rotary positions")
    theta = scaling.real("rope_theta", fields.real("rope_theta", theta), above=1.0)
    for source in (fields, scaling):
        if source.real("partial_rotary_factor", 1.0) != 1.0:
            raise source.unsupported(
                "partial_rotary_factor", "only full rotary positions (1.0) are supported"
            )
    key = "rope_type" if scaling.get("rope_type") is not None else "type"
    match scaling.text(key, "default"):
        case "default":
            return RopeSpec(theta=theta)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=scaling.real("factor"))
        case "llama3":
            return _llama3(scaling, theta, _original(fields, scaling, context))
        case "yarn":
            return _yarn(scaling, theta, context, _original(fields, scaling, context))
    raise scaling.unsupported(key, "only default, linear, llama3 and yarn are supported")


def _original(fields: Fields, scaling: Fields, context: int) -> int:
    key = "original_max_position_embeddings"
    return fields.whole(key, scaling.whole(key, context, high=MOST_TOKENS), high=MOST_TOKENS)


def _llama3(scaling: Fields, theta: float, original: int) -> RopeSpec:
    low, high = scaling.real("low_freq_factor"), scaling.real("high_freq_factor")
    if high <= low:
        raise scaling.bad("high_freq_factor", f"must be above low_freq_factor, which is {low:g}")
    return RopeSpec(
        theta=theta,
        kind="llama3",
        factor=scaling.real("factor"),
        original_context=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(scaling: Fields, theta: float, context: int, original: int) -> RopeSpec:
    factor = scaling.real("factor", context / original)

    def sharpened(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = sharpened(1.0)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        attention = sharpened(scaling.real("mscale")) / sharpened(scaling.real("mscale_all_dim"))
    return RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=scaling.real("beta_fast", 32.0),
        beta_slow=scaling.real("beta_slow", 1.0),
        attention_factor=scaling.real("attention_factor", attention),
        truncate=scaling.flag("truncate", True),
    )
