"""The attention back ends there are, and which one an engine takes. Their names are known without torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from engine.api.config import KvSchemeName, LayerSpec
from engine.api.errors import BadInput
from engine.api.plugins import missing_members

if TYPE_CHECKING:
    import torch

    from engine.attention.base import AttentionBackend

GROUP = "minichat.attention"  # entry points of packages that bring a back end of their own
BUILT_IN = {  # imported when they are first asked for
    "torch": "engine.attention.torch_backend",
    "triton": "engine.attention.triton_backend",
    "flash-attn": "engine.attention.flash_backend",
    "flashinfer": "engine.attention.flashinfer_backend",
}
# What "auto" tries; elsewhere torch. By docs/attention-gpu.md triton is ahead of the packages in whole.
PREFERRED = {"cuda": ("triton", "torch")}

logger = logging.getLogger("minichat.engine")

_B = TypeVar("_B", bound="type[AttentionBackend]")
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
    block_size: int | None = None,
) -> AttentionBackend:
    """The back end of that name; "auto" takes the best that can serve all these layers there."""
    asked = (device, specs, dtype, kv_scheme, block_size)
    if name != "auto":
        if (problem := why_not(name, *asked)) is None:
            return BACKENDS[name]()
        able = [other for other in names() if why_not(other, *asked) is None]
        raise BadInput(f"attention {name!r}: {problem}; available here: {', '.join(able)}")
    passed: list[str] = []
    for candidate in PREFERRED.get(device.type, ("torch",)):
        if (problem := why_not(candidate, *asked)) is None:
            if passed:
                logger.warning("attention falls back to %s: %s", candidate, "; ".join(passed))
            return BACKENDS[candidate]()
        passed.append(f"{candidate}: {problem}")
    raise BadInput(f"no attention back end serves this model on {device}: {'; '.join(passed)}")


def block_size_for(name: str, wanted: int) -> int:
    """The size that was wanted, or the one that the back end of this name reads."""
    sizes = None if _load(name) else getattr(BACKENDS[name], "block_sizes", None)
    return wanted if sizes is None or wanted in sizes else sizes[0]


def why_not(
    name: str,
    device: torch.device,
    specs: Sequence[LayerSpec],
    dtype: torch.dtype,
    kv_scheme: KvSchemeName = "none",
    block_size: int | None = None,
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
    sizes = getattr(backend, "block_sizes", None)
    if sizes is not None and block_size is not None and block_size not in sizes:
        return f"it reads blocks of {' or '.join(map(str, sizes))} tokens (block_size), not {block_size}"
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
            found = point.load()
            if (problem := missing_members(found, "name", "why_not", "prepare", "attend")) is None:
                BACKENDS[name] = found
            return problem
    except (ImportError, AttributeError) as error:
        return f"it cannot be imported ({error})"
    return "there is none of that name"
