"""The schemes there are, by name. What they are called is known without torch."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from engine.api.errors import BadInput
from engine.api.plugins import missing_members

if TYPE_CHECKING:
    import torch

    from engine.quant.base import Scheme

GROUP = "minichat.quantization"  # entry points of packages that bring a scheme of their own
BUILT_IN = {  # imported when they are first asked for
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
    """All that could be asked for: the built-in ones in the order that they are shown in, then others."""
    others = {*SCHEMES, *(point.name for point in entry_points(group=GROUP))} - BUILT_IN.keys()
    return [*BUILT_IN, *sorted(others)]


def named(name: str) -> Scheme:
    if (problem := _load(name)) is not None:
        known = ", ".join(names())
        raise BadInput(f"quantization {name!r}: {problem}; there are {known}", field="scheme", value=name)
    return SCHEMES[name]


def of_head(scheme: Scheme) -> Scheme:
    """What keeps the head where layers are of that scheme. Schemes of others need not say it."""
    return named(getattr(scheme, "head", "none"))


def choose(name: str, device: torch.device, dtype: torch.dtype) -> Scheme:
    """The scheme of that name, if it runs there."""
    scheme = named(name)
    if (problem := scheme.why_not(device, dtype)) is not None:
        raise BadInput(f"quantization {name!r}: {problem}", field="scheme", value=name)
    return scheme


def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """None: it runs there; else the sentence that says what is in the way."""
    problem = _load(name)
    return SCHEMES[name].why_not(device, dtype) if problem is None else problem


def _load(name: str) -> str | None:
    """Puts the scheme into SCHEMES; what kept it out comes back as a sentence."""
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
            return None if name in SCHEMES else f"its package calls it by another name than {name!r}"
    except (ImportError, AttributeError) as error:
        return f"it cannot be imported ({error})"
    return "there is none of that name"
