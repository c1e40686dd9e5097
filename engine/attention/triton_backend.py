"""Triton kernels: what NVIDIA GPUs run. docs/attention-gpu.md has their figures."""

from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from engine.attention.base import Batch, KVLayer
from engine.attention.registry import register
from engine.config import LayerSpec
from engine.kernels.attention import tiles
from engine.kernels.attention.paged import attend
from engine.kernels.attention.work import ITEM, MERGE, Chunks, Work, lay_out
from engine.kernels.attention.write import write

WIDEST = 256  # of a head; wider ones leave no room for keys beside the queries
OLDEST = (8, 0)  # compute capability: bf16 products and asynchronous copies begin there


@dataclass(slots=True)
class Prepared:
    """A step, and what is to be launched for each kind of layer, found out when the first one comes."""

    batch: Batch
    work: dict[LayerSpec, list[Work]] = field(default_factory=dict)


@register
class TritonAttention:
    """Two launches of one kernel: rows of one token, which are bound by memory, and rows of several."""

    name: ClassVar[str] = "triton"

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        if device.type != "cuda":
            return f"it needs an NVIDIA GPU, and the device is {device}"
        if (capability := torch.cuda.get_device_capability(device)) < OLDEST:
            return f"it needs compute capability 8.0, and {device} has {capability[0]}.{capability[1]}"
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"it serves float16, bfloat16 and float32, not {dtype}"
        if (widest := max(spec.key_dim, spec.value_dim)) > WIDEST:
            return f"it serves heads of {WIDEST} at most, not {widest}"
        return None

    def prepare(self, batch: Batch) -> Prepared:
        return Prepared(batch)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, prepared: Prepared) -> Tensor:
        spec, batch = layer.spec, prepared.batch
        if (launches := prepared.work.get(spec)) is None:
            launches = prepared.work[spec] = plan(batch, spec, q.dtype.itemsize)
        write(layer.keys, layer.values, k, v, batch.places, early=launches[0].tile.early)
        out = torch.empty(len(q), spec.heads, spec.value_dim, dtype=q.dtype, device=q.device)
        for work in launches:
            attend(out, q, layer, batch.tables, work)
        return out


def plan(batch: Batch, spec: LayerSpec, itemsize: int) -> list[Work]:
    """The launches of one step for layers of that kind."""
    starts, contexts, single = batch.host_starts, batch.host_contexts, batch.single
    device = batch.tables.device
    launches = []
    if single:
        tile = tiles.for_tokens(spec, single, gpu(device), itemsize)
        chunks = Chunks.of(0, starts[: single + 1], contexts[:single], 1)
        launches.append(upload(chunks, spec, tile, device))
    if single < len(contexts):
        longest, mean = int(np.diff(starts[single:]).max()), float(contexts[single:].mean())
        tile = tiles.for_chunks(spec, longest, min(mean, spec.window or mean), gpu(device), itemsize)
        chunks = Chunks.of(single, starts[single:], contexts[single:], tile.queries)
        launches.append(upload(chunks, spec, tile, device))
    return launches


def upload(chunks: Chunks, spec: LayerSpec, tile: tiles.Tile, device: torch.device) -> Work:
    """Cuts the work into programs and puts the list of them on the device, in one copy."""
    items, merges, partials = lay_out(chunks, spec.window, spec.kv_heads, tile)
    both = torch.from_numpy(np.concatenate((items.ravel(), merges.ravel()))).to(device, non_blocking=True)
    on_device = both[: items.size].view(-1, ITEM), both[items.size :].view(-1, MERGE)
    return Work(tile, *on_device, partials, most=int(merges[:, 3].max(initial=0)))


@cache
def gpu(device: torch.device) -> tiles.Gpu:
    if device.type != "cuda":  # Triton's interpreter, which takes anything
        return tiles.Gpu(room=2**16, overlaps=False)
    room = driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    return tiles.Gpu(room, overlaps=torch.cuda.get_device_capability(device) >= (9, 0))
