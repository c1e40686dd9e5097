"""Lays a plan out as the tensors that a model and its attention read."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from engine.attention.base import Batch
from engine.cache.tables import BlockTables
from engine.request import Request
from engine.runner.staging import upload
from engine.scheduling.plan import Plan, Row


@dataclass(slots=True)
class Laid:
    """A plan as tensors."""

    batch: Batch
    ends: torch.Tensor | None  # the last token of each row that samples; None: every token is one
    slots: torch.Tensor  # of the rows that sample


class BatchBuilder:
    """Reads requests and block tables; changes neither."""

    def __init__(
        self, requests: Mapping[int, Request], tables: BlockTables, block_size: int, device: torch.device
    ):
        self._requests, self._tables, self._block_size, self._device = requests, tables, block_size, device
        self._ones = np.arange(len(tables.grid) + 1, dtype=np.int32)  # where rows of one token begin

    def build(self, plan: Plan, last_ids: torch.Tensor) -> Laid:
        """`last_ids[slot]` is the token a slot has drawn last; it may not have reached the host yet."""
        columns = np.fromiter(chain.from_iterable(plan.rows), np.int64, len(Row._fields) * len(plan.rows))
        columns = columns.reshape(len(plan.rows), -1)
        slots, firsts, counts = columns[:, 1], columns[:, 2], columns[:, 3]
        contexts = firsts + counts
        if plan.single == len(counts) < len(self._ones):
            starts, positions, token_slots = self._ones[: len(counts) + 1], firsts, slots
        else:
            starts = np.zeros(len(counts) + 1, np.int32)
            np.cumsum(counts, out=starts[1:])
            positions = np.repeat(firsts - starts[:-1], counts) + np.arange(plan.tokens)
            token_slots = np.repeat(slots, counts)
        blocks, offsets = np.divmod(positions, self._block_size)
        places = self._tables.grid[token_slots, blocks].astype(np.int64) * self._block_size + offsets
        widest = -(-int(contexts.max()) // self._block_size)
        tables = self._tables.grid[slots, :widest]
        contexts = contexts.astype(np.int32)

        ids, pending = self._ids(plan)
        samples = columns[:, 4].astype(bool)
        every = plan.single == len(counts) and bool(samples.all())
        arrays = [ids, positions, places, starts, contexts, tables, slots if every else slots[samples]]
        if not every:
            arrays.append(starts[1:][samples].astype(np.int64) - 1)
        if pending:
            at = np.array(pending)
            arrays += [at, slots[at]]
        sent = upload(arrays, self._device)
        if pending:
            sent[0][sent[-2]] = last_ids[sent[-1]]
        batch = Batch(
            ids=sent[0],
            positions=sent[1],
            places=sent[2],
            starts=sent[3],
            contexts=sent[4],
            tables=sent[5],
            single=plan.single,
            block_size=self._block_size,
            host_starts=starts,
            host_contexts=contexts,
            host_tables=tables,
        )
        return Laid(batch, ends=None if every else sent[7], slots=sent[6])

    def _ids(self, plan: Plan) -> tuple[np.ndarray, list[int]]:
        """The token ids of all rows, and which rows' ids are still on the device alone."""
        requests, single = self._requests, plan.single
        ids, pending = [], []
        for at, row in enumerate(plan.rows[:single]):
            tokens = requests[row.request].tokens
            if row.start < len(tokens):
                ids.append(tokens[row.start])
            elif row.request in plan.drafts:
                ids.append(plan.drafts[row.request].tokens[row.start - len(tokens)])
            else:
                ids.append(0)
                pending.append(at)
        chunks = (
            requests[row.request].tokens[row.start : row.start + row.length] for row in plan.rows[single:]
        )
        return np.fromiter(chain(ids, chain.from_iterable(chunks)), np.int64, plan.tokens), pending
