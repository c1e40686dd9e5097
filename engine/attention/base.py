"""The interface between a model and the paged cache."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import KvSchemeName, LayerSpec, why_not_packed
from engine.attention.latent import LatentProjections
from engine.attention.observers import Observers
from engine.attention.recurrence import Recurrence
from engine.attention.state_runs import StateRuns
from engine.kv.store import KVLayer

__all__ = [
    "Attend",
    "AttentionBackend",
    "Batch",
    "KVLayer",
    "LatentProjections",
    "Recurrence",
    "Values",
    "attending",
    "why_no_kv_scheme",
    "why_not_on",
]

OLDEST = (8, 0)  # compute capability with bf16 products and asynchronous copies

# What a model calls in each layer: (layer, queries [T, heads, key_dim], keys [T, kv_heads, key_dim], values
# [T, kv_heads, value_dim]) -> [T, heads, value_dim]. The model does not handle where the keys are stored.
# In latent attention the keys are latents [T, 1, key_dim], and the projections of latents replace the values.
# In a layer with a state they are the inputs of a convolution [T, channels], gates [T, 2, heads] and what
# changes the state.
Values = Tensor | LatentProjections | Recurrence
Attend = Callable[[int, Tensor, Tensor, Values], Tensor]


@dataclass(slots=True)
class Batch:
    """One step: the tokens of all rows concatenated, rows with a single token first."""

    ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    places: Tensor  # [tokens] int64: block * block_size + offset, where each token's KV is written
    starts: Tensor  # [rows + 1] int32: where each row's tokens begin
    contexts: Tensor  # [rows] int32: number of tokens each row attends to, including its own
    tables: Tensor  # [rows, most blocks of a row] int32
    single: int  # number of rows at the front that hold one token each
    block_size: int
    host_starts: np.ndarray  # host copies of the three, for backends that loop over rows on the host
    host_contexts: np.ndarray
    host_tables: np.ndarray
    observers: Observers | None = None  # for kernels: tokens whose attention is summed up
    # The same step with the tables and places of each other group of layers.
    others: tuple["Batch", ...] = field(default=(), init=False)


class AttentionBackend(Protocol):
    """Created once per engine. `prepare` runs once per step, `attend` once per layer."""

    name: ClassVar[str]
    kv_schemes: ClassVar[tuple[KvSchemeName, ...]]  # cache schemes it supports; if absent: "none"
    keeps_first: ClassVar[bool]  # whether it supports LayerSpec.kept; if absent, it does not
    chunks: ClassVar[bool]  # whether it supports LayerSpec.chunk; if absent, it does not
    slopes: ClassVar[bool]  # whether it supports LayerSpec.slopes; if absent, it does not
    # Optional: `block_sizes`, a tuple of the block sizes it reads; if absent, it reads any.
    # Optional: `write_cells`, which only writes k, and v unless it is None; if absent, `attend` runs instead.
    # Optional: `attend_latents`, like `attend` for a layer whose spec is latent; if absent, it supports none.

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        """Return None if it supports this layer on this device, else the reason, which `doctor` prints."""

    def prepare(self, batch: Batch) -> Any: ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, metadata: Any) -> Tensor:
        """Write k and v to the batch's cache slots, then attend; return [tokens, heads, value_dim]."""


def attending(backend: AttentionBackend, layers: Sequence[KVLayer], batch: Batch) -> Attend:
    """Prepare a step and return the function the model calls in each of its layers."""
    prepared = [backend.prepare(each) for each in (batch, *batch.others)]
    latents: Any = getattr(backend, "attend_latents", None)  # choose() has checked that there is one
    runs: StateRuns | None = None

    def attend(layer: int, q: Tensor, k: Tensor, v: Values) -> Tensor:
        nonlocal runs
        if isinstance(v, Recurrence):
            runs = runs or state_runs(batch)
            return v.advance(q, k, layers[layer], runs)
        metadata = prepared[layers[layer].group]
        if isinstance(v, LatentProjections):
            mixed: Tensor = latents(q, k, v, layers[layer], metadata)
            return mixed
        return backend.attend(q, k, v, layers[layer], metadata)

    return attend


def caching(backend: AttentionBackend, layers: Sequence[KVLayer], batch: Batch) -> Attend:
    """Like `attending`, but only write keys and values, if the backend can: the results are not used."""
    if (write := getattr(backend, "write_cells", None)) is None:
        return attending(backend, layers, batch)
    prepared = [backend.prepare(each) for each in (batch, *batch.others)]

    def cache(layer: int, q: Tensor, k: Tensor, v: Values) -> Tensor:
        assert not isinstance(v, Recurrence)
        metadata = prepared[layers[layer].group]
        write(k, None if isinstance(v, LatentProjections) else v, layers[layer], metadata)
        return q.new_zeros(*q.shape[:2], v.value if isinstance(v, LatentProjections) else v.shape[2])

    return cache


def state_runs(batch: Batch) -> StateRuns:
    where = batch.host_starts, batch.host_contexts, batch.host_tables
    return StateRuns(*where, batch.block_size, batch.ids.device)


def why_no_kv_scheme(
    backend: AttentionBackend,
    specs: Iterable[LayerSpec],
    scheme: KvSchemeName,
) -> str | None:
    """Return None if the backend reads a cache of these layers in this scheme, else the reason."""
    if problem := why_not_packed(specs, scheme):
        return problem
    able = getattr(backend, "kv_schemes", ("none",))  # external backends may predate the attribute
    if scheme in able:
        return None
    return f"attention {backend.name} supports the KV schemes {', '.join(able)}, not {scheme}"


def why_not_on(device: torch.device) -> str | None:
    """The part of `why_not` that all backends with NVIDIA GPU kernels share."""
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU, and the device is {device}"
    if (found := torch.cuda.get_device_capability(device)) < OLDEST:
        needed, has = (".".join(map(str, each)) for each in (OLDEST, found))
        return f"it needs compute capability {needed}, and {device} has {has}"
    return None
