"""Reads the rotary position settings of a config.json. Needs no torch."""

import math
from dataclasses import dataclass, replace

from engine.api.config import RopeSpec
from engine.models.fields import MOST_HEAD_DIM, MOST_TOKENS, Fields
from engine.models.kinds.base import Flag

_LEAST = 1e-6  # of what frequencies are divided by: they have to stay finite


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKind:
    """How a family rotates, and its defaults for config.json."""

    theta: float = 10_000.0
    partial: float | None = None  # share of a head that is rotated; None: always all of it
    interleaved: bool | Flag = False
    local: bool = False  # sliding layers have their own settings
    local_theta: tuple[str, float] | None = None  # key and default of their base; None: that of full layers


def rope_specs(fields: Fields, context: int, kind: RopeKind) -> tuple[RopeSpec, RopeSpec | None]:
    """Return the settings of the layers, and those of sliding layers if they differ.

    Read `rope_scaling` and `rope_theta`, or the newer `rope_parameters` that holds both.
    """
    scaling = scaling_of(fields)
    if not any(isinstance(value, dict) for value in scaling.values.values()):
        spec = _spec(fields, scaling, context, kind)
        return spec, _local(fields, spec, kind) if kind.local else None
    if not kind.local:
        raise fields.unsupported(scaling.path.rstrip("."), "all layers must use the same rotary positions")
    full, sliding = (scaling.inside(f"{each}_attention") for each in ("full", "sliding"))
    spec = _spec(fields, full, context, kind)
    theta = sliding.real("rope_theta", _local(fields, spec, kind).theta, above=1.0)
    return spec, replace(_spec(fields, sliding, context, kind), theta=theta)


def scaling_of(fields: Fields) -> Fields:
    return fields.inside("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")


def _local(fields: Fields, spec: RopeSpec, kind: RopeKind) -> RopeSpec:
    """Sliding layers never need the scaling for a longer context."""
    theta = spec.theta if kind.local_theta is None else fields.real(*kind.local_theta, above=1.0)
    return RopeSpec(theta=theta, share=spec.share, interleaved=spec.interleaved)


def _spec(fields: Fields, scaling: Fields, context: int, kind: RopeKind) -> RopeSpec:
    theta = scaling.real("rope_theta", fields.real("rope_theta", kind.theta), above=1.0)
    share = _share(fields, scaling, kind.partial)
    pairs = kind.interleaved
    interleaved = fields.flag(*pairs) if isinstance(pairs, tuple) else pairs
    return replace(_scaled(fields, scaling, context, theta), share=share, interleaved=interleaved)


def _share(fields: Fields, scaling: Fields, default: float | None) -> float:
    for source in (scaling, fields):
        if source.get("partial_rotary_factor") is not None:
            share = source.real("partial_rotary_factor", high=1.0)
            if share != 1.0 and default is None:
                raise source.unsupported(
                    "partial_rotary_factor", "only full rotary positions (1.0) are supported"
                )
            return share
    return default or 1.0


def _scaled(fields: Fields, scaling: Fields, context: int, theta: float) -> RopeSpec:
    key = "rope_type" if scaling.get("rope_type") is not None else "type"
    match scaling.text(key, "default"):
        case "default":
            return RopeSpec(theta=theta)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=scaling.real("factor", above=_LEAST))
        case "llama3":
            return _llama3(scaling, theta, _original(fields, scaling, context))
        case "dynamic":  # differs from the default only beyond max_position_embeddings
            return RopeSpec(theta=theta)
        case "yarn" if not scaling.given("short_factor"):
            return _yarn(scaling, theta, context, _original(fields, scaling, context))
        case "longrope" | "su" | "yarn":  # older names
            return _longrope(scaling, theta, context, _original(fields, scaling, context))
    raise scaling.unsupported(key, "only default, linear, dynamic, llama3, yarn and longrope are supported")


def _original(fields: Fields, scaling: Fields, context: int) -> int:
    key = "original_max_position_embeddings"
    return fields.whole(key, scaling.whole(key, context, high=MOST_TOKENS), high=MOST_TOKENS)


def _llama3(scaling: Fields, theta: float, original: int) -> RopeSpec:
    low, high = scaling.real("low_freq_factor"), scaling.real("high_freq_factor")
    if high < low:
        raise scaling.bad("high_freq_factor", f"must be at least low_freq_factor, which is {low:g}")
    return RopeSpec(
        theta=theta,
        kind="llama3",
        factor=scaling.real("factor", above=_LEAST),
        original_context=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(scaling: Fields, theta: float, context: int, original: int) -> RopeSpec:
    factor = scaling.real("factor", context / original, above=_LEAST)

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


def _longrope(scaling: Fields, theta: float, context: int, original: int) -> RopeSpec:
    factor = scaling.real("factor", context / original, above=_LEAST)
    attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return RopeSpec(
        theta=theta,
        kind="longrope",
        factor=factor,
        original_context=original,
        attention_factor=scaling.real("attention_factor", attention),
        short_factors=_factors(scaling, "short_factor"),
        long_factors=_factors(scaling, "long_factor"),
    )


def _factors(scaling: Fields, key: str) -> tuple[float, ...]:
    found = scaling.list(key)
    for each in found:
        if not isinstance(each, int | float) or isinstance(each, bool) or not _LEAST < each < 1e12:
            raise scaling.bad(key, f"must be numbers above {_LEAST:g}")
    if not 0 < len(found) <= MOST_HEAD_DIM:
        raise scaling.bad(key, "must list a number for each pair of a head's rotated numbers")
    return tuple(map(float, found))
