"""The quantization schemes by name. Listing their names needs no torch."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from engine.api.errors import BadInput
from engine.api.plugins import missing_members

if TYPE_CHECKING:
    import torch

    from engine.quant.base import Scheme

GROUP = "minichat.quantization"  # entry points of packages that provide a scheme
BUILT_IN = {  # imported on first use
    **dict.fromkeys(("none", "fp32", "bf16", "fp16"), "engine.quant.plain"),
    "int8": "engine.quant.int8",
    **dict.fromkeys(("int4", "int4-32", "int4-64", "int4-128"), "engine.quant.int4"),
    "fp8": "engine.quant.fp8",
    **dict.fromkeys(("bnb-int8", "bnb-nf4", "bnb-fp4"), "engine.quant.bnb"),
}
SCHEMES: dict[str, Scheme] = {}
ASKED = ("name", "kernels", "rounds_activations", "graphs", "why_not", "nbytes", "make")


def register(scheme: Scheme) -> None:
    SCHEMES[scheme.name] = scheme


def names() -> list[str]:
    """Every scheme that can be selected: the built-in ones in display order, then others."""
    others = {*SCHEMES, *(point.name for point in entry_points(group=GROUP))} - BUILT_IN.keys()
    return [*BUILT_IN, *sorted(others)]


def named(name: str) -> Scheme:
    if (problem := _load(name)) is not None:
        known = ", ".join(names())
        raise BadInput(f"quantization {name!r}: {problem}; available: {known}", field="scheme", value=name)
    return SCHEMES[name]


def of_head(scheme: Scheme) -> Scheme:
    """Return the head's scheme when layers use `scheme`. Third-party schemes may lack the attribute."""
    return named(getattr(scheme, "head", "none"))


def choose(name: str, device: torch.device, dtype: torch.dtype) -> Scheme:
    """Return the scheme of that name, if it runs on this device."""
    scheme = named(name)
    if (problem := scheme.why_not(device, dtype)) is not None:
        raise BadInput(f"quantization {name!r}: {problem}", field="scheme", value=name)
    return scheme


def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return None if the scheme runs on this device, else the reason."""
    problem = _load(name)
    return SCHEMES[name].why_not(device, dtype) if problem is None else problem


def _load(name: str) -> str | None:
    """Add the scheme to SCHEMES, or return the reason it could not be loaded."""
    if name in SCHEMES:
        return None
    try:
        if name in BUILT_IN:
            importlib.import_module(BUILT_IN[name])
            return None
        for point in entry_points(group=GROUP, name=name):
            found = point.load()()
            if (problem := missing_members(found, *ASKED)) is not None:
                return problem
            register(found)
            return None if name in SCHEMES else f"its package registers another name than {name!r}"
    except (ImportError, AttributeError) as error:
        return f"it cannot be imported ({error})"
    return "no scheme has that name"
