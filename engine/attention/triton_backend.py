"""Triton kernels for NVIDIA GPUs. docs/attention-gpu.md has the measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.attention.base import (
    Batch,
    KVLayer,
    LatentProjections,
    Recurrence,
    Values,
    state_runs,
    why_not_on,
)
from engine.attention.expansion import Expansion, expands
from engine.attention.graph_work import GraphMetadata, gpu
from engine.attention.observers import Observers
from engine.attention.registry import register
from engine.attention.short_conv import ShortConvolution
from engine.attention.state_runs import DeviceRuns, StateRuns
from engine.attention.state_space import StateSpace
from engine.kernels.triton.attention import tiles
from engine.kernels.triton.attention.latents import attend_latents
from engine.kernels.triton.attention.paged import attend
from engine.kernels.triton.attention.received import receive
from engine.kernels.triton.attention.work_plan import (
    ITEM,
    MERGE,
    SPAN,
    AttentionWork,
    Chunks,
    Spans,
    plan_items,
    plan_spans,
)
from engine.kernels.triton.attention.write import write
from engine.kernels.triton.attention.write_fours import write_fours
from engine.kernels.triton.padding import padded_rows

WIDEST = 256  # head dimension; wider heads leave no shared memory for keys
# Numbers of a latent that are values. In float32, wider products take minutes to compile.
WIDEST_LATENT, WIDEST_FLOAT_LATENT = 512, 128


@dataclass(slots=True)
class TritonMetadata:
    """A step, and its launches by kind of layer, planned when the first layer of each kind runs."""

    tables: Tensor
    batch: Batch
    work: dict[LayerSpec, list[AttentionWork]] = field(default_factory=dict)
    others: tuple["TritonMetadata", ...] = ()  # of the other groups of layers
    _expands: dict[LayerSpec, bool] = field(default_factory=dict)
    _expansion: Expansion | None = None
    _states: DeviceRuns | None = None
    _plain_states: StateRuns | None = None

    def of(self, layer: KVLayer, places: Tensor) -> tuple["TritonMetadata", Tensor]:
        """What a layer reads, and where its keys are written. `places`: in the first group."""
        if not layer.group:
            return self, places
        other = self.others[layer.group - 1]
        return other, other.batch.places

    @property
    def observers(self) -> Observers | None:
        return self.batch.observers

    @property
    def states(self) -> DeviceRuns:
        """For layers with a recurrent state."""
        if self._states is None:
            batch = self.batch
            where = batch.host_starts, batch.host_contexts, batch.host_tables, batch.block_size
            self._states = DeviceRuns.of(*where, self.tables)
        return self._states

    @property
    def plain_states(self) -> StateRuns:
        self._plain_states = self._plain_states or state_runs(self.batch)
        return self._plain_states

    @property
    def rows(self) -> dict[str, Tensor]:
        """Which tokens are in which row of the tables, as `write_fours` takes it."""
        return {"starts": self.batch.starts, "contexts": self.batch.contexts}

    def expansion(self, spec: LayerSpec, up: LatentProjections) -> Expansion | None:
        """For prompts over latents, if they read keys and values."""
        if spec not in self._expands:
            self._expands[spec] = expands(self.batch, spec, up, widest=WIDEST)
        if self._expands[spec] and self._expansion is None:
            self._expansion = Expansion.of(self.batch, TritonAttention().prepare)
        return self._expansion if self._expands[spec] else None

    def launches(self, spec: LayerSpec, itemsize: int, *, packed: bool) -> list[AttentionWork]:
        if spec not in self.work:
            self.work[spec] = plan(self.batch, spec, itemsize, packed=packed)
        return self.work[spec]


@register
class TritonAttention:
    """Two launches of one kernel: rows of one token, which are memory-bound, and rows of several."""

    name: ClassVar[str] = "triton"
    kv_schemes: ClassVar[tuple[KvSchemeName, ...]] = KV_SCHEMES
    keeps_first: ClassVar[bool] = True
    chunks: ClassVar[bool] = True
    slopes: ClassVar[bool] = True

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        if (problem := why_not_on(device)) is not None:
            return problem
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"it supports float16, bfloat16 and float32, not {dtype}"
        if spec.latent:
            return _why_not_latents(spec, dtype)
        if (widest := max(spec.key_dim, spec.value_dim)) > WIDEST:
            return f"it supports head dimensions up to {WIDEST}, not {widest}"
        return None

    def prepare(self, batch: Batch) -> TritonMetadata:
        found = TritonMetadata(batch.tables, batch)
        found.others = tuple(TritonMetadata(each.tables, each, found.work) for each in batch.others)
        return found

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, metadata: TritonMetadata) -> Tensor:
        packed = layer.key_scales is not None
        pdl = metadata.launches(layer.spec, q.dtype.itemsize, packed=packed)[0].tile.pdl
        self.write(k, v, layer, metadata, metadata.batch.places, pdl=pdl)
        return self.mix(q, layer, metadata)

    def attend_latents(
        self, q: Tensor, k: Tensor, up: LatentProjections, layer: KVLayer, metadata: TritonMetadata
    ) -> Tensor:
        return self.attend_plainly(q, k, up, layer, metadata, metadata.batch.places)

    def write(
        self,
        k: Tensor,
        v: Tensor,
        layer: KVLayer,
        metadata: TritonMetadata | GraphMetadata,
        places: Tensor,
        *,
        pdl: bool,
    ) -> None:
        """Write keys and values to the cells `places`."""
        if layer.channels is None:
            write(layer, k, v, places, pdl=pdl)
        else:
            write_fours(layer, k, v, places, metadata.tables, **metadata.rows)

    def attend_plainly(
        self,
        q: Tensor,
        k: Tensor,
        v: Values,
        layer: KVLayer,
        metadata: TritonMetadata | GraphMetadata,
        places: Tensor,
    ) -> Tensor:
        """Attend for a part that runs its plain forward. One with a state has kernels for graphs."""
        if isinstance(v, StateSpace | ShortConvolution):
            return v.advance_on_device(q, k, layer, metadata.states)
        if isinstance(v, Recurrence):
            assert isinstance(metadata, TritonMetadata)
            return v.advance(q, k, layer, metadata.plain_states)
        if isinstance(v, LatentProjections):
            self.write(k, k, layer, metadata, places, pdl=False)
            if (expansion := metadata.expansion(layer.spec, v)) is not None:
                return expansion.mixed(q, v, layer, self.mix)
            return v.outputs(self.mix(v.absorbed(q), layer, metadata))
        self.write(k, v, layer, metadata, places, pdl=False)
        return self.mix(q, layer, metadata)

    def mix(self, q: Tensor, layer: KVLayer, metadata: TritonMetadata | GraphMetadata) -> Tensor:
        """Attend over keys and values that are already written, or over latents from absorbed queries."""
        spec, packed = layer.spec, layer.key_scales is not None
        out = padded_rows(len(q), spec.heads, spec.value_dim, like=q)
        for work in metadata.launches(spec, q.dtype.itemsize, packed=packed):
            if spec.latent:
                attend_latents(out, q, layer, metadata.tables, work)
            else:
                attend(out, q, layer, metadata.tables, work)
        if metadata.observers is not None:
            receive(q, layer, metadata.tables, metadata.observers)
        return out


def _why_not_latents(spec: LayerSpec, dtype: torch.dtype) -> str | None:
    if spec.softcap or spec.sinks or spec.chunk or spec.slopes:
        return "it supports latents without soft caps, sinks, chunks or slopes"
    widest = WIDEST_FLOAT_LATENT if dtype is torch.float32 else WIDEST_LATENT
    if max(spec.value_dim, spec.rotary_dim) > widest:
        return f"it supports latents of up to {widest} numbers in {dtype}, not {spec.value_dim}"
    return None


def plan(batch: Batch, spec: LayerSpec, itemsize: int, *, packed: bool) -> list[AttentionWork]:
    """Return the launches of a step for layers with that spec. `packed`: over a compressed cache."""
    starts, contexts, single = batch.host_starts, batch.host_contexts, batch.single
    device = batch.tables.device
    launches = []
    if single:
        tile = tiles.for_tokens(spec, single, gpu(device), itemsize, packed=packed)
        chunks = Chunks.of(0, starts[: single + 1], contexts[:single], 1)
        launches.append(work_of(chunks, spec, tile, device))
    if single < len(contexts):
        counts, contexts = np.diff(starts[single:]), contexts[single:]
        gathered = tiles.for_gathered(spec, counts, contexts, gpu(device), itemsize, packed=packed)
        longest, mean = int(counts.max()), float(contexts.mean())
        seen = min(mean, spec.reach or mean)
        tile = gathered or tiles.for_chunks(spec, longest, seen, gpu(device), itemsize, packed=packed)
        gathers = gathered is not None
        if itemsize == 2 and (gathers or not packed):
            tall = tiles.for_prompts(spec, counts, contexts, gpu(device), batch.block_size)
            tile, gathers = tall or tile, packed or (gathers and not tall)
        chunks = Chunks.of(single, starts[single:], contexts, tile.queries)
        launches.append(work_of(chunks, spec, tile, device, contexts, gathers=gathers))
    return launches


def work_of(
    chunks: Chunks,
    spec: LayerSpec,
    tile: tiles.Tile,
    device: torch.device,
    contexts: np.ndarray | None = None,
    *,
    gathers: bool = False,
) -> AttentionWork:
    """Split the work into programs and send their list to the device in one copy.

    `contexts`: of all rows, if there are several tokens of each. `gathers`: whether they are to be gathered.
    """
    items, merges, partials = plan_items(chunks, spec, tile)
    most, first = int(merges[:, 3].max(initial=0)), int(chunks.rows[0])
    if contexts is None or not gathers:
        if contexts is not None:
            items[:, 7] = contexts[items[:, 0] - first]
        sent = sent_to(device, items, merges)
        return AttentionWork(tile, sent[0].view(-1, ITEM), sent[1].view(-1, MERGE), partials, most)
    table, longest, cells = plan_spans(first, contexts, tile.keys)
    items[:, 7] = table[items[:, 0] - first, 2]
    sent = sent_to(device, items, merges, table)
    spans = Spans(sent[2].view(-1, SPAN), longest, cells)
    return AttentionWork(tile, sent[0].view(-1, ITEM), sent[1].view(-1, MERGE), partials, most, spans)


def sent_to(device: torch.device, *arrays: np.ndarray) -> Sequence[Tensor]:
    """Send the arrays to the device in one copy, and return them flat."""
    both = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
    return both.to(device, non_blocking=True).split([array.size for array in arrays])
