"""Packs a step's rows into the tensors that a model and its attention read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch

from engine.attention.base import Attend, Batch
from engine.execution.cuda.staging import upload
from engine.kv.tables import TableMirror
from engine.models.adapters.bank import AdapterBank
from engine.models.adapters.products import StepAdapters
from engine.models.base import LanguageModel
from engine.models.decoder import Decoder
from engine.scheduling.step import LAST, Rows


@dataclass(slots=True)
class PackedBatch:
    """The rows of a step as tensors."""

    batch: Batch
    ends: torch.Tensor | None  # index of the last token of each row that samples; None: every token
    slots: torch.Tensor  # of the rows that sample
    adapters: StepAdapters | None  # of the tokens; None: no row has one
    stream: torch.Tensor | None = None  # of the tokens, from an earlier stage; None: they are embedded here

    def through(self, model: LanguageModel, attend: Attend) -> torch.Tensor:
        """Run the model's own forward. Only a decoder has adapters or stages."""
        ids, positions = self.batch.ids, self.batch.positions
        if self.adapters is None and self.stream is None:
            return model.forward(ids, positions, attend)
        decoder = cast(Decoder, model)
        return decoder.forward(ids, positions, attend, adapters=self.adapters, stream=self.stream)


class BatchBuilder:
    """Packs rows, using the runner's block tables."""

    def __init__(self, tables: TableMirror, block_size: int, device: torch.device, adapters: AdapterBank):
        self._tables, self._block_size, self._device, self._adapters = tables, block_size, device, adapters
        self._ones = np.arange(len(tables.grid) + 1, dtype=np.int32)  # starts of rows with one token each

    def build(self, rows: Rows, ids: np.ndarray, single: int, last_ids: torch.Tensor) -> PackedBatch:
        """`last_ids[slot]` is the token a slot sampled last; it may not have reached the host yet."""
        slots, firsts, counts, contexts = rows.slots, rows.starts, rows.lengths, rows.contexts
        many = len(slots)
        plain = single == many
        if plain and many < len(self._ones):
            starts, positions, token_slots = self._ones[: many + 1], firsts, slots
            cells = firsts - rows.skipped if rows.rare else firsts
        else:
            starts = np.zeros(many + 1, np.int32)
            np.cumsum(counts, out=starts[1:])
            positions = np.repeat(firsts - starts[:-1], counts) + np.arange(len(ids))
            token_slots = np.repeat(slots, counts)
            cells = positions - np.repeat(rows.skipped, counts)
        grid, *others = self._tables.grids
        blocks, offsets = np.divmod(cells, self._block_size)
        places = grid[token_slots, blocks].astype(np.int64) * self._block_size + offsets
        widest = -(-int(contexts.max()) // self._block_size)
        tables = grid[slots, :widest]
        contexts = contexts.astype(np.int32)

        (pending,) = (ids[:single] == LAST).nonzero()
        every = plain and rows.sampling is rows
        arrays = [ids, positions, places, starts, contexts, tables]
        if every:
            arrays.append(slots)
        else:
            samples = rows.samples
            arrays += [slots[samples], starts[1:][samples].astype(np.int64) - 1]
        all_pending = every and len(pending) == many
        if len(pending) and not all_pending:
            arrays[0] = ids.copy()  # on a CPU the tensor shares the array's memory
            arrays += [pending, slots[pending]]
        sent = upload(arrays, self._device)
        if all_pending:
            sent[0] = last_ids[sent[6]]
        elif len(pending):
            sent[0][sent[-2]] = last_ids[sent[-1]]
        batch = Batch(
            ids=sent[0],
            positions=sent[1],
            places=sent[2],
            starts=sent[3],
            contexts=sent[4],
            tables=sent[5],
            single=single,
            block_size=self._block_size,
            host_starts=starts,
            host_contexts=contexts,
            host_tables=tables,
        )
        if others:
            where = token_slots, blocks, offsets, slots
            batch.others = tuple(self._others(batch, others, *where))
        adapters = None
        if rows.rare:
            adapters = self._adapters.of_step(rows.adapters, counts, partial(upload, device=self._device))
        return PackedBatch(batch, ends=None if every else sent[7], slots=sent[6], adapters=adapters)

    def _others(
        self,
        batch: Batch,
        grids: Sequence[np.ndarray],
        token_slots: np.ndarray,
        blocks: np.ndarray,
        offsets: np.ndarray,
        slots: np.ndarray,
    ) -> Iterator[Batch]:
        """The same step in the blocks of the other groups of layers."""
        widest, arrays = batch.host_tables.shape[1], list[np.ndarray]()
        for grid in grids:
            places = grid[token_slots, blocks].astype(np.int64) * self._block_size + offsets
            arrays += [places, grid[slots, :widest]]
        sent = upload(arrays, self._device)
        for at in range(0, len(arrays), 2):
            yield replace(batch, places=sent[at], tables=sent[at + 1], host_tables=arrays[at + 1])
