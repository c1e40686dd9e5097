"""The attention backends and how an engine chooses one. Listing their names needs no torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from engine.api.cache_spec import KvSchemeName, LayerSpec, why_not_packed
from engine.api.errors import BadInput
from engine.api.plugins import missing_members

if TYPE_CHECKING:
    import torch

    from engine.attention.base import AttentionBackend

GROUP = "minichat.attention"  # entry points of packages that provide a backend
BUILT_IN = {  # imported on first use
    "torch": "engine.attention.torch_backend",
    "triton": "engine.attention.triton_backend",
    "flash-attn": "engine.attention.flash_backend",
    "flashinfer": "engine.attention.flashinfer_backend",
}
# What "auto" tries; torch on other devices. docs/attention-gpu.md: triton is fastest overall.
PREFERRED = {"cuda": ("triton", "torch")}

logger = logging.getLogger("minichat.engine")

_B = TypeVar("_B", bound="type[AttentionBackend]")
BACKENDS: dict[str, type[AttentionBackend]] = {}


def register(cls: _B) -> _B:
    BACKENDS[cls.name] = cls
    return cls


def names() -> list[str]:
    """Every backend that can be selected by name, loaded or not."""
    return sorted({*BACKENDS, *BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def choose(
    name: str,
    device: torch.device,
    specs: Sequence[LayerSpec],
    dtype: torch.dtype,
    kv_scheme: KvSchemeName = "none",
    block_size: int | None = None,
) -> AttentionBackend:
    """Return the backend of that name; "auto" picks the best one that supports all these layers."""
    needs = (device, specs, dtype, kv_scheme, block_size)
    if name != "auto":
        if (problem := why_not(name, *needs)) is None:
            return BACKENDS[name]()
        able = [other for other in names() if why_not(other, *needs) is None]
        raise BadInput(f"attention {name!r}: {problem}; available here: {', '.join(able)}")
    passed: list[str] = []
    for candidate in PREFERRED.get(device.type, ("torch",)):
        if (problem := why_not(candidate, *needs)) is None:
            if passed:
                logger.warning("attention falls back to %s: %s", candidate, "; ".join(passed))
            return BACKENDS[candidate]()
        passed.append(f"{candidate}: {problem}")
    raise BadInput(f"no attention backend supports this model on {device}: {'; '.join(passed)}")


def block_size_for(name: str, preferred: int) -> int:
    """Return `preferred` if the backend supports that block size, else one it supports."""
    known = name != "auto" and _load(name) is None  # looking for other packages takes milliseconds
    sizes = getattr(BACKENDS[name], "block_sizes", None) if known else None
    return preferred if sizes is None or preferred in sizes else sizes[0]


def why_not(
    name: str,
    device: torch.device,
    specs: Sequence[LayerSpec],
    dtype: torch.dtype,
    kv_scheme: KvSchemeName = "none",
    block_size: int | None = None,
) -> str | None:
    """Return None if the backend supports all these layers, else the reason."""
    if (problem := _load(name)) is not None:
        return problem
    backend = BACKENDS[name]
    specs = [spec for spec in specs if spec.has_keys]  # the others need no backend, see recurrence.py
    reasons = (backend.why_not(device, spec, dtype) for spec in dict.fromkeys(specs))
    if reason := next((reason for reason in reasons if reason is not None), None):
        return reason
    if any(spec.kept for spec in specs) and not getattr(backend, "keeps_first", False):
        return "it does not support a window that keeps the first tokens (kv_window)"
    if any(spec.chunk for spec in specs) and not getattr(backend, "chunks", False):
        return "it does not support attention within chunks of a text"
    if any(spec.slopes for spec in specs) and not getattr(backend, "slopes", False):
        return "it does not support scores that fall with the distance (ALiBi)"
    if any(spec.latent for spec in specs) and not hasattr(backend, "attend_latents"):
        return "it does not support latent attention"
    if reason := why_not_packed(specs, kv_scheme):
        return reason
    # A third-party backend may predate the field.
    if kv_scheme not in (able := getattr(backend, "kv_schemes", ("none",))):
        return f"it supports the KV cache schemes {' and '.join(able)}, not {kv_scheme}"
    sizes = getattr(backend, "block_sizes", None)
    if sizes is not None and block_size is not None and block_size not in sizes:
        return f"it supports blocks of {' or '.join(map(str, sizes))} tokens (block_size), not {block_size}"
    return None


def _load(name: str) -> str | None:
    """Add the backend to BACKENDS, or return the reason it could not be loaded."""
    if name in BACKENDS:
        return None
    try:
        if name in BUILT_IN:
            import_module(BUILT_IN[name])
            return None
        for point in entry_points(group=GROUP, name=name):
            found = point.load()
            if (problem := missing_members(found, "name", "why_not", "prepare", "attend")) is None:
                BACKENDS[name] = found
            return problem
    except (ImportError, AttributeError) as error:
        return f"it cannot be imported ({error})"
    return "no backend has that name"
