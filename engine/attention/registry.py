"""The attention back ends there are, and which one an engine takes."""

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

import torch

from engine.attention.base import AttentionBackend
from engine.config import KvSchemeName, LayerSpec
from engine.errors import BadInput

GROUP = "minichat.attention"  # entry points of packages that bring a back end of their own
BUILT_IN = {  # imported when they are first asked for
    "torch": "engine.attention.torch_backend",
    "triton": "engine.attention.triton_backend",
}
PREFERRED = {"cuda": ("triton", "torch")}  # what "auto" tries; elsewhere torch

logger = logging.getLogger("minichat.engine")

_B = TypeVar("_B", bound=type[AttentionBackend])
BACKENDS: dict[str, type[AttentionBackend]] = {}


def register(cls: _B) -> _B:
    BACKENDS[cls.name] = cls
    return cls


def names() -> list[str]:
    """Every back end that could be asked for by name, loaded or not."""
    return sorted({*BACKENDS, *BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def choose(
    name: str,
    device: torch.device,
    specs: Sequence[LayerSpec],
    dtype: torch.dtype,
    kv_scheme: KvSchemeName = "none",
) -> AttentionBackend:
    """The back end of that name; "auto" takes the best that can serve all these layers there."""
    if name != "auto":
        if (problem := why_not(name, device, specs, dtype, kv_scheme)) is None:
            return BACKENDS[name]()
        able = [other for other in names() if why_not(other, device, specs, dtype, kv_scheme) is None]
        raise BadInput(f"attention {name!r}: {problem}; available here: {', '.join(able)}")
    passed: list[str] = []
    for candidate in PREFERRED.get(device.type, ("torch",)):
        if (problem := why_not(candidate, device, specs, dtype, kv_scheme)) is None:
            if passed:
                logger.warning("attention falls back to %s: %s", candidate, "; ".join(passed))
            return BACKENDS[candidate]()
        passed.append(f"{candidate}: {problem}")
    raise BadInput(f"no attention back end serves this model on {device}: {'; '.join(passed)}")


def why_not(
    name: str,
    device: torch.device,
    specs: Sequence[LayerSpec],
    dtype: torch.dtype,
    kv_scheme: KvSchemeName = "none",
) -> str | None:
    """None: it serves all these layers there; else the sentence that says what is in the way."""
    if (problem := _load(name)) is not None:
        return problem
    backend = BACKENDS[name]
    reasons = (backend.why_not(device, spec, dtype) for spec in dict.fromkeys(specs))
    if reason := next((reason for reason in reasons if reason is not None), None):
        return reason
    if any(spec.kept for spec in specs) and not getattr(backend, "keeps_first", False):
        return "it knows no window that keeps the first tokens in sight (kv_window)"
    if kv_scheme not in (able := getattr(backend, "kv_schemes", ("none",))):  # others' may be older than it
        return f"it serves a cache of {' or '.join(able)}, not {kv_scheme}"
    return None


def _load(name: str) -> str | None:
    """Puts the back end into BACKENDS; what kept it out comes back as a sentence."""
    if name in BACKENDS:
        return None
    try:
        if name in BUILT_IN:
            import_module(BUILT_IN[name])
            return None
        for point in entry_points(group=GROUP, name=name):
            BACKENDS[name] = point.load()
            return None
    except (ImportError, AttributeError) as error:
        return f"it cannot be imported ({error})"
    return "there is none of that name"
