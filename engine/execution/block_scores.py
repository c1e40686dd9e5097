"""Scores of the blocks that a step fills. Requests with a budget evict blocks by them (kv/eviction.py).

They are computed beside the step, from the cached keys, so attention kernels need not return their weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from engine.api.config import EvictionName
from engine.attention.base import Attend, KVLayer, Values
from engine.attention.channels import keys_of
from engine.attention.torch_backend import score, weigh
from engine.execution.protocol import BlockScores
from engine.execution.results import to_host
from engine.kv.tables import TableMirror
from engine.scheduling.step import Rows


class FilledBlock(NamedTuple):
    """A block that a row fills."""

    request: int
    block: int  # its index among the request's blocks
    token: int  # index in the step of its last token
    blocks: Tensor  # of the request, up to this one


@dataclass(slots=True)
class StepScores:
    """The scores of one step: on the device, or on the host once the copies are done."""

    policy: EvictionName
    layers: Sequence[KVLayer]
    filled: Sequence[FilledBlock]
    totals: list[Tensor] = field(default_factory=list)  # of each filled block

    @classmethod
    def of(
        cls, policy: EvictionName | None, layers: Sequence[KVLayer], rows: Rows, tables: TableMirror
    ) -> "StepScores":
        """The scores that a step will compute; none without a policy."""
        if policy is None:
            return NO_SCORES
        size, found, begin = layers[0].block_size, list[FilledBlock](), 0
        for row in rows:
            for block in range(row.start // size, (row.start + row.length) // size):
                blocks = tables.grid[row.slot, : block + 1 - row.skipped // size].copy()
                token = begin + (block + 1) * size - 1 - row.start
                found.append(FilledBlock(row.request, block, token, torch.from_numpy(blocks)))
            begin += row.length
        return cls(policy, layers, found)

    def watching(self, attend: Attend) -> Attend:
        """`attend`, which also sums the attention of each filled block's last token to the blocks it sees."""
        if self.policy != "attention" or not self.filled:
            return attend
        self.totals = [torch.zeros(len(each.blocks)) for each in self.filled]

        def watched(layer: int, q: Tensor, k: Tensor, v: Values) -> Tensor:
            out = attend(layer, q, k, v)
            for total, each in zip(self.totals, self.filled, strict=True):
                total += received(q[each.token], self.layers[layer], each.blocks)
            return out

        return watched

    def finish(self) -> bool:
        """Complete the scores after the model has run. Returns whether there are any."""
        if self.policy == "norms":
            self.totals = [to_host(-self._norm(each.blocks[-1:])) for each in self.filled]
        return bool(self.filled)

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


NO_SCORES = StepScores("norms", (), ())


def received(query: Tensor, layer: KVLayer, blocks: Tensor) -> Tensor:
    """The attention of a query [heads, key_dim] to each of these full blocks, summed over its heads."""
    spec = layer.spec
    keys = keys_of(layer, blocks)
    grouped = query.view(spec.kv_heads, -1, spec.key_dim).float() * spec.scale
    weights = weigh(score(grouped, keys.flatten(0, 1).permute(1, 2, 0), spec.softcap), layer.sinks)
    return weights.sum((0, 1)).view(len(blocks), -1).sum(1)
