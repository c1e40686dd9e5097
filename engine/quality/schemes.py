"""The schemes to compare: one for the weights, one for the KV cache, or both."""

from typing import NamedTuple

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName
from engine.api.errors import BadInput
from engine.quant.registry import names

_KV = "kv-"


class SchemePair(NamedTuple):
    """A scheme to compare, such as `int8`, `kv-fp8` or `int4+kv-int8`."""

    name: str
    weights: str = "none"
    cache: KvSchemeName = "none"


REFERENCE = SchemePair("none")


def choices(text: str) -> list[SchemePair]:
    """Parse a comma-separated list and drop duplicates."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    if not names:
        raise BadInput("no schemes given; for example --schemes none,int8,kv-int8,int4+kv-fp8")
    return [_choice(name) for name in dict.fromkeys(names)]


def _choice(name: str) -> SchemePair:
    parts = name.split("+")
    weights = [part for part in parts if not part.startswith(_KV)]
    caches = [part.removeprefix(_KV) for part in parts if part.startswith(_KV)]
    if len(weights) > 1 or len(caches) > 1:
        raise BadInput(
            f"scheme {name!r} must have at most one part for the weights and one for the cache, "
            "such as int4+kv-int8"
        )
    cache = caches[0] if caches else "none"
    if cache not in KV_SCHEMES:
        known = ", ".join(_KV + each for each in KV_SCHEMES)
        raise BadInput(f"scheme {name!r}: unknown cache scheme {_KV}{cache}; must be one of {known}")
    if weights and weights[0] not in names():
        raise BadInput(f"unknown weight scheme {weights[0]!r}; must be one of {', '.join(names())}")
    return SchemePair(name, weights[0] if weights else "none", cache)
