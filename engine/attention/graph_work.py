"""The attention's work in CUDA graphs: lists at fixed addresses, which each step fills."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor
from triton.runtime import driver

from engine.api.cache_spec import LayerSpec, keeps_state
from engine.attention.base import KVLayer, LatentProjections
from engine.attention.expansion import Expansion
from engine.attention.observers import Observers
from engine.attention.state_runs import RUN, DeviceRuns, write_runs
from engine.kernels.triton.attention import tiles
from engine.kernels.triton.attention.work_plan import ITEM, MERGE, AttentionWork, Chunks, plan_items

PIECES = 16, 64  # the most pieces of prompts in a graph, or one for so many of its tokens if that is more
CELLS = 3 * 2**17  # the most that their tiles read, each its own context: more takes longer than launching
LONGEST_RUN = 64  # tokens of a piece over recurrent states: in a graph, a program has all tokens of a run


@dataclass(frozen=True, slots=True)
class GraphMetadata:
    """A step whose work lists are at fixed addresses, as CUDA graphs require."""

    tables: Tensor  # a row a slot
    work: Mapping[LayerSpec, list[AttentionWork]]
    slots: Tensor  # of the tokens
    contexts: Tensor
    states: DeviceRuns
    observers: Observers | None = None
    others: tuple[
        tuple["GraphMetadata", Tensor], ...
    ] = ()  # of the other groups of layers, with their places

    def of(self, layer: KVLayer, places: Tensor) -> tuple["GraphMetadata", Tensor]:
        """What a layer reads, and where its keys are written. `places`: in the first group."""
        return self.others[layer.group - 1] if layer.group else (self, places)

    @property
    def rows(self) -> dict[str, Tensor]:
        return {"slots": self.slots, "contexts": self.contexts}

    def expansion(self, spec: LayerSpec, up: LatentProjections) -> Expansion | None:
        return None  # its sizes change from step to step

    def launches(self, spec: LayerSpec, itemsize: int, *, packed: bool) -> list[AttentionWork]:
        return self.work[spec]


@dataclass(frozen=True, slots=True)
class WorkList:
    """The work list of one launch, in a buffer of fixed size."""

    spec: LayerSpec
    tile: tiles.Tile
    most: int  # items, as many as there may be if contexts are split
    merged: int  # split tiles

    @property
    def size(self) -> int:
        """How many int32 values it has."""
        return self.most * ITEM + self.merged * MERGE

    def fill(self, numbers: np.ndarray, chunks: Chunks) -> bool:
        """Write the list over zeros: an item without queries does nothing. Return whether any is split."""
        room = self.most, self.merged
        items, merges, _ = plan_items(chunks, self.spec, self.tile, room)
        numbers[: items.size] = items.ravel()
        at = self.most * ITEM
        numbers[at : at + merges.size] = merges.ravel()
        return len(merges) > 0

    def work(self, numbers: Tensor, whole: int = 0) -> AttentionWork:
        """The launch, given the list on the device. `whole`: it has so many items, none of them split."""
        items = numbers[: self.most * ITEM].view(-1, ITEM)
        merges = numbers[self.most * ITEM :].view(-1, MERGE)
        if whole:
            return AttentionWork(self.tile, items[:whole], merges[:0], 0, most=0)
        return AttentionWork(self.tile, items, merges, self.most, most=min(self.most, 64))


class GraphWork:
    """Work lists at fixed addresses, for steps of up to `tokens` tokens: decodes, or also pieces of prompts.

    If no context of a decode is split, their list has one item per row and nothing is merged; a graph is
    captured for each case. Contexts of pieces are usually split.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        packed: bool = False,
        pieces: bool = False,
        rows: int | None = None,
    ) -> None:
        """`rows`: the most rows of one token. None: as many as tokens."""
        limits, itemsize = gpu(device), dtype.itemsize
        self._tokens, self._rows = tokens, tokens if rows is None else min(tokens, rows)
        self._most_pieces = max(PIECES[0], tokens // PIECES[1])
        self._singles, self._pieces = [], []
        for spec in dict.fromkeys(specs):
            if not spec.has_keys:
                continue
            tile = tiles.for_tokens(spec, self._rows, limits, itemsize, packed=packed)
            most = self._rows + max(self._rows // 8, tile.programs // spec.kv_heads)
            # One merge per row, of at least two pieces each. A single row is faster with idle programs:
            # they delay the next kernel, which would fetch its weights while attention reads the cache,
            # unless the context has been fetched before.
            idles = tokens == 1 and not tile.fetch
            merged = most // 2 if idles else min(self._rows, most // 2)
            self._singles.append(WorkList(spec, tile, most, merged))
            if pieces:
                tile = tiles.for_chunks(spec, tokens, tiles.LONG, limits, itemsize, packed=packed)
                tall = tokens // tile.queries + min(tokens // 2, self._most_pieces)
                most = tall + max(tall // 8, tile.programs // spec.kv_heads)
                merged = min(tokens // tile.queries + 2, most // 2)
                self._pieces.append(WorkList(spec, tile, most, merged))
        self._runs = tokens * RUN if keeps_state(specs) else 0
        # int32 values in all lists
        self.numbers = sum(each.size for each in (*self._singles, *self._pieces)) + self._runs

    def holds(self, lengths: np.ndarray, contexts: np.ndarray) -> bool:
        """Whether the lists have room for a step with pieces of prompts, and launching it takes longer."""
        longer = lengths > 1
        lengths, contexts, rows = lengths[longer], contexts[longer], len(lengths) - int(longer.sum())
        if rows > self._rows or len(lengths) > self._most_pieces:
            return False
        if self._runs and lengths.max(initial=0) > LONGEST_RUN:
            return False
        return all((-(-lengths // each.tile.queries) * contexts).sum() <= CELLS for each in self._pieces)

    def fill(self, numbers: np.ndarray, slots: np.ndarray, contexts: np.ndarray, lengths: np.ndarray) -> bool:
        """Write a step's lists from a slot, a context and a number of tokens per row, single tokens first.

        Return whether any context of a decode is split.
        """
        single, at, cut = int(np.count_nonzero(lengths == 1)), 0, False
        decodes = Chunks(slots[:single], np.arange(single), lengths[:single], contexts[:single] - 1)
        numbers[:] = 0
        for each in self._singles:
            if single:
                cut |= each.fill(numbers[at : at + each.size], decodes)
            at += each.size
        for each in self._pieces:
            starts = single + np.cumsum([0, *lengths[single:]])
            chunks = Chunks.of(0, starts, contexts[single:], each.tile.queries)
            chunks = chunks._replace(rows=slots[single:][chunks.rows])
            each.fill(numbers[at : at + each.size], chunks)
            at += each.size
        if self._runs:
            write_runs(numbers[at:].reshape(-1, RUN), slots, contexts, lengths)
        return cut

    def metadata(
        self,
        numbers: Tensor,
        tables: Tensor,
        slots: Tensor,
        contexts: Tensor,
        *,
        cut: bool,
        decodes: bool,
        others: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> GraphMetadata:
        """Return the metadata a graph reads, as views of the same numbers on the device.

        `slots` and `contexts`: of the step's tokens. Slots are rows of `tables`. `cut`: what `fill` returned.
        `decodes`: whether there are rows of one token. `others`: the tables and places of the other groups.
        """
        work: dict[LayerSpec, list[AttentionWork]] = {}
        at = 0
        for each in self._singles:
            if decodes:
                mine = numbers[at : at + each.size]
                work[each.spec] = [each.work(mine, 0 if cut else self._rows)]
            at += each.size
        for each in self._pieces:
            work.setdefault(each.spec, []).append(each.work(numbers[at : at + each.size]))
            at += each.size
        states = DeviceRuns(tables, numbers[at:].view(-1, RUN), longest=self._tokens, single=True)
        found = GraphMetadata(tables, work, slots, contexts, states)
        return replace(found, others=tuple((replace(found, tables=rows), at) for rows, at in others))


@cache
def gpu(device: torch.device) -> tiles.GpuLimits:
    if device.type != "cuda":  # Triton's interpreter has no limits
        return tiles.GpuLimits(room=2**16, overlaps=False)
    room = driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
    given = torch.cuda.get_device_properties(device)
    hoppers = given.multi_processor_count if given.major == 9 else 0
    return tiles.GpuLimits(room, overlaps=given.major >= 9, hoppers=hoppers)
