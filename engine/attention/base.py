"""The seam between a model and the paged cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.api.config import KvSchemeName, LayerSpec
from engine.kv.store import KVLayer

__all__ = ["Attend", "AttentionBackend", "Batch", "KVLayer", "attending", "why_not_on"]

OLDEST = (8, 0)  # compute capability: bf16 products and asynchronous copies begin there

# What a model calls in each layer: (layer, queries [T, heads, key_dim], keys [T, kv_heads, key_dim],
# values [T, kv_heads, value_dim]) -> [T, heads, value_dim]. Where the keys go is not its business.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(slots=True)
class Batch:
    """One step: rows of tokens laid end to end, those with a single token first."""

    ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    places: Tensor  # [tokens] int64: block * block_size + offset, where each token's KV is written
    starts: Tensor  # [rows + 1] int32: where each row's tokens begin
    contexts: Tensor  # [rows] int32: how many tokens each row attends to, its own included
    tables: Tensor  # [rows, most blocks of a row] int32
    single: int  # so many rows at the front hold one token each
    block_size: int
    host_starts: np.ndarray  # the same three on the host, for back ends that loop over rows there
    host_contexts: np.ndarray
    host_tables: np.ndarray


class AttentionBackend(Protocol):
    """Made once per engine. `prepare` runs once a step, `attend` once a layer."""

    name: ClassVar[str]
    kv_schemes: ClassVar[tuple[KvSchemeName, ...]]  # what caches it reads and writes; without it, plain ones
    keeps_first: ClassVar[bool]  # whether it heeds LayerSpec.kept; without it, it does not
    # It may have `block_sizes`, a tuple of those that it reads; without it, it reads any.

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        """None: it can serve such a layer there; else the sentence `doctor` prints."""

    def prepare(self, batch: Batch) -> Any: ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, metadata: Any) -> Tensor:
        """Writes k and v to the batch's places, then attends; returns [tokens, heads, value_dim]."""


def attending(backend: AttentionBackend, layers: Sequence[KVLayer], batch: Batch) -> Attend:
    """What a model calls in each layer of this step; what the step needs is prepared here."""
    metadata = backend.prepare(batch)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return backend.attend(q, k, v, layers[layer], metadata)

    return attend


def why_not_on(device: torch.device) -> str | None:
    """The beginning of `why_not` of those whose kernels are for NVIDIA's GPUs."""
    if device.type != "cuda":
        return f"it needs an NVIDIA GPU, and the device is {device}"
    if (found := torch.cuda.get_device_capability(device)) < OLDEST:
        needed, has = (".".join(map(str, each)) for each in (OLDEST, found))
        return f"it needs compute capability {needed}, and {device} has {has}"
    return None
