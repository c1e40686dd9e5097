"""Packs a step's rows into the tensors that a model and its attention read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast

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


class _TokenCells(NamedTuple):
    """Where each token of a step is cached."""

    starts: np.ndarray  # [rows + 1] int32: where each row's tokens begin
    positions: np.ndarray  # of the tokens in their requests
    slots: np.ndarray  # of their requests
    blocks: np.ndarray  # indices in their requests' rows of the block tables
    offsets: np.ndarray  # in these blocks


class BatchBuilder:
    """Packs rows, using the runner's block tables."""

    def __init__(self, tables: TableMirror, block_size: int, device: torch.device, adapters: AdapterBank):
        self._tables, self._block_size, self._device, self._adapters = tables, block_size, device, adapters
        self._ones = np.arange(len(tables.grid) + 1, dtype=np.int32)  # starts of rows with one token each

    def build(self, rows: Rows, ids: np.ndarray, single: int, last_ids: torch.Tensor) -> PackedBatch:
        """`last_ids[slot]` is the token a slot sampled last; it may not have reached the host yet."""
        slots, host_contexts = rows.slots, rows.contexts.astype(np.int32)
        cells = self._cells(rows, slots, len(ids), single)
        grid, *others = self._tables.grids
        host_tables = grid[slots, : -(-int(host_contexts.max()) // self._block_size)]

        (pending,) = (ids[:single] == LAST).nonzero()
        every = single == len(slots) and rows.sampling is rows
        all_pending = every and len(pending) == len(slots)
        if len(pending) and not all_pending:
            ids = ids.copy()  # on a CPU the tensor shares the array's memory
        arrays = [ids, cells.positions, self._places(grid, cells), cells.starts, host_contexts, host_tables]
        if every:
            arrays.append(slots)
        else:
            samples = rows.samples
            arrays += [slots[samples], cells.starts[1:][samples].astype(np.int64) - 1]
        if len(pending) and not all_pending:
            arrays += [pending, slots[pending]]
        tokens, positions, places, starts, contexts, tables, sampling, *more = upload(arrays, self._device)
        if all_pending:
            tokens = last_ids[sampling]
        elif len(pending):
            at, from_slots = more[-2:]
            tokens[at] = last_ids[from_slots]
        batch = Batch(
            ids=tokens,
            positions=positions,
            places=places,
            starts=starts,
            contexts=contexts,
            tables=tables,
            single=single,
            block_size=self._block_size,
            host_starts=cells.starts,
            host_contexts=host_contexts,
            host_tables=host_tables,
        )
        if others:
            batch.others = tuple(self._others(batch, others, cells, slots))
        adapters = None
        if rows.rare:
            send = partial(upload, device=self._device)
            adapters = self._adapters.of_step(rows.adapters, rows.lengths, send)
        return PackedBatch(batch, ends=None if every else more[0], slots=sampling, adapters=adapters)

    def _cells(self, rows: Rows, slots: np.ndarray, tokens: int, single: int) -> _TokenCells:
        firsts, many = rows.starts, len(slots)
        if single == many < len(self._ones):
            starts, positions = self._ones[: many + 1], firsts
            cells = firsts - rows.skipped if rows.rare else firsts
        else:
            starts, counts = np.zeros(many + 1, np.int32), rows.lengths
            np.cumsum(counts, out=starts[1:])
            positions = np.repeat(firsts - starts[:-1], counts) + np.arange(tokens)
            slots = np.repeat(slots, counts)
            cells = positions - np.repeat(rows.skipped, counts)
        return _TokenCells(starts, positions, slots, *np.divmod(cells, self._block_size))

    def _places(self, grid: np.ndarray, cells: _TokenCells) -> np.ndarray:
        blocks: np.ndarray = grid[cells.slots, cells.blocks].astype(np.int64)
        return blocks * self._block_size + cells.offsets

    def _others(
        self, batch: Batch, grids: Sequence[np.ndarray], cells: _TokenCells, slots: np.ndarray
    ) -> Iterator[Batch]:
        """The same step in the blocks of the other groups of layers."""
        widest, arrays = batch.host_tables.shape[1], list[np.ndarray]()
        for grid in grids:
            arrays += [self._places(grid, cells), grid[slots, :widest]]
        sent = upload(arrays, self._device)
        for at in range(0, len(arrays), 2):
            yield replace(batch, places=sent[at], tables=sent[at + 1], host_tables=arrays[at + 1])
