"""Scores of the blocks that a step fills. Requests with a budget evict blocks by them (kv/eviction.py).

They are computed beside the step, from the cached keys, so attention kernels need not return their weights.
Where kernels run the model, they sum up the attention, too (attention/observers.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from engine.api.config import EvictionName
from engine.attention.base import Attend, KVLayer, Values
from engine.attention.channels import keys_of
from engine.attention.observers import Observers, by_block
from engine.attention.torch_backend import score, weigh
from engine.execution.budget import CacheBudget
from engine.execution.protocol import BlockScores
from engine.execution.results import to_host
from engine.kv.eviction import filled_blocks
from engine.kv.tables import TableMirror
from engine.scheduling.step import Rows


class FilledBlock(NamedTuple):
    """A block that a row fills."""

    request: int
    block: int  # its index among the request's blocks
    token: int  # index in the step of its last token
    blocks: Tensor  # of the request, up to this one


@dataclass(slots=True, eq=False)
class StepScores:
    """The scores of one step: on the device, or on the host once the copies are done."""

    policy: EvictionName
    layers: Sequence[KVLayer]
    filled: Sequence[FilledBlock]
    listed: np.ndarray  # see `filled_blocks`
    observed: int = 0  # see `most_observed`
    totals: list[Tensor] = field(default_factory=list)  # of each filled block
    observers: Observers | None = None  # of a step whose kernels were launched one by one

    @classmethod
    def of(
        cls, room: CacheBudget | None, layers: Sequence[KVLayer], rows: Rows, tables: TableMirror
    ) -> "StepScores":
        """The scores that a step will compute; none if requests have no budget."""
        if room is None or room.budget is None:
            return NO_SCORES
        size, found = layers[0].block_size, list[FilledBlock]()
        listed = filled_blocks(rows.lengths, rows.contexts, size)
        for token, at, count in listed.tolist():
            row = rows[at]
            blocks = torch.from_numpy(tables.grid[row.slot, :count].copy())
            found.append(FilledBlock(row.request, count - 1 + row.skipped // size, token, blocks))
        return cls(room.budget.policy, layers, found, listed, most_observed(room, tables))

    def watching(self, attend: Attend) -> Attend:
        """`attend`, which also sums the attention of each filled block's last token to the blocks it sees."""
        if self.policy != "attention" or not self.filled:
            return attend
        device = self.layers[0].keys.device
        self.totals = [torch.zeros(len(each.blocks), device=device) for each in self.filled]
        places = [each.blocks.to(device) for each in self.filled]

        def watched(layer: int, q: Tensor, k: Tensor, v: Values) -> Tensor:
            out = attend(layer, q, k, v)
            for total, each, blocks in zip(self.totals, self.filled, places, strict=True):
                total += received(q[each.token], self.layers[layer], blocks)
            return out

        return watched

    def observing(self) -> Observers | None:
        """The same for kernels: what they add the attention to, if this step fills any block."""
        if self.policy == "attention" and self.filled and self.observers is None:
            layer = self.layers[0]
            where = self.observed, layer.block_size, layer.keys.device
            self.observers = Observers.of(self.listed, *where)
        return self.observers

    def finish(self, replayed: Tensor | None) -> Self:
        """Complete the scores of filled blocks after the model has run.

        `replayed`: the totals of observers if a graph has run the model.
        """
        if self.policy == "norms":
            self.totals = [to_host(-self._norm(each.blocks[-1:])) for each in self.filled]
        elif self.totals:
            self.totals = [to_host(each) for each in self.totals]
        else:
            totals = replayed if self.observers is None else self.observers.totals
            assert totals is not None
            found = to_host(by_block(totals[: len(self.filled)], self.layers[0].block_size))
            self.totals = [row[: len(each.blocks)] for row, each in zip(found, self.filled, strict=True)]
        return self

    def _norm(self, block: Tensor) -> Tensor:
        """The mean logarithm of the norms of a block's keys, so that each head's own scale cancels out."""
        at = block.to(self.layers[0].keys.device)  # once, not for each layer
        norms = [keys_of(layer, at).norm(dim=-1).clamp_min(1e-30).log().mean() for layer in self.layers]
        return torch.stack(norms).mean(0, keepdim=True)

    def on_host(self) -> list[BlockScores]:
        found = []
        for total, each in zip(self.totals, self.filled, strict=True):
            scores = torch.zeros(len(each.blocks))
            scores[-len(total) :] = total  # a norm is the score of the block alone
            found.append(BlockScores(each.request, each.block, scores.numpy()))
        return found


NO_SCORES = StepScores("norms", (), (), np.empty((0, 3), np.int64))


def most_observed(room: CacheBudget | None, tables: TableMirror) -> int:
    """To how many blocks a token's attention is summed up, at most; 0 if no policy needs it."""
    if room is None or room.budget is None or room.budget.policy != "attention":
        return 0
    return min(room.budget.peak, tables.grid.shape[1])


def received(query: Tensor, layer: KVLayer, blocks: Tensor) -> Tensor:
    """The attention of a query [heads, key_dim] to each of these full blocks, summed over its heads."""
    spec = layer.spec
    keys = keys_of(layer, blocks)
    grouped = query.view(spec.kv_heads, -1, spec.key_dim).float() * spec.scale
    weights = weigh(score(grouped, keys.flatten(0, 1).permute(1, 2, 0), spec.softcap), layer.sinks)
    return weights.sum((0, 1)).view(len(blocks), -1).sum(1)
