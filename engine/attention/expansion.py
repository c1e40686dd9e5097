"""Prompts over cached latents on a GPU: keys and values of each head are made for whole contexts.

The kernel for plain attention then reads them like a cache with blocks of one token.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.base import Batch, KVLayer
from engine.attention.latent import LatentProjections

MOST = 2**26  # numbers of keys and values that are made at once

Mix = Callable[[Tensor, KVLayer, Any], Tensor]  # attends from queries over what is already written


@dataclass(frozen=True, slots=True)
class Expansion:
    """A step whose rows of one token read latents, and whose pieces of prompts read keys and values."""

    first: int  # the first token that is part of a piece
    cells: Tensor  # [tokens of all contexts of pieces, end to end]: where their latents are
    decodes: Any  # a backend's metadata for the rows of one token
    pieces: Any  # the same for the others; their tables number the tokens of `cells`

    @classmethod
    def of(cls, batch: Batch, prepare: Callable[[Batch], Any]) -> "Expansion":
        """`prepare`: as in AttentionBackend."""
        single, starts, device = batch.single, batch.host_starts, batch.tables.device
        rows, contexts = batch.host_tables[single:], batch.host_contexts[single:]
        ends = np.cumsum(contexts)
        row = np.repeat(np.arange(len(contexts)), contexts)
        at = np.arange(ends[-1]) - (ends - contexts)[row]
        cells = rows[row, at // batch.block_size].astype(np.int64) * batch.block_size + at % batch.block_size
        tables = ((ends - contexts)[:, None] + np.arange(contexts.max())).astype(np.int32)
        decodes = replace(batch, host_starts=starts[: single + 1], host_contexts=batch.host_contexts[:single])
        pieces = replace(
            batch, tables=torch.from_numpy(tables).to(device, non_blocking=True), single=0, block_size=1,
            host_starts=starts[single:] - starts[single], host_contexts=contexts, host_tables=tables,
        )  # fmt: skip
        there = torch.from_numpy(cells).to(device, non_blocking=True)
        return cls(int(starts[single]), there, prepare(decodes), prepare(pieces))

    def mixed(self, q: Tensor, up: LatentProjections, layer: KVLayer, mix: Mix) -> Tensor:
        """Attend from queries [tokens, heads, unrotated + rotated] over latents that are already written."""
        prompts = mix(q[self.first :], self.made(up, layer), self.pieces)
        if not self.first:
            return prompts
        absorbed = up.absorbed(q[: self.first])
        return torch.cat((up.outputs(mix(absorbed, layer, self.decodes)), prompts))

    def made(self, up: LatentProjections, layer: KVLayer) -> KVLayer:
        """Make the keys and values, from the cache."""
        latents = layer.keys.view(-1, 1, layer.spec.key_dim)[self.cells]
        keys, values = up.expanded(latents)
        heads, key_dim = keys.shape[1:]
        spec = replace(layer.spec, kv_heads=heads, key_dim=key_dim, value_dim=up.value, latent=False)
        return KVLayer(spec, keys.unsqueeze(1), values.contiguous().unsqueeze(1))


def expands(batch: Batch, spec: LayerSpec, up: LatentProjections, *, widest: int) -> bool:
    """Whether that takes fewer multiplications than projecting the queries, and little enough memory.

    `widest`: the most numbers of a key or a value that the kernel reads.
    """
    if batch.single == len(batch.contexts) or max(up.unrotated + spec.rotary_dim, up.value) > widest:
        return False
    counts = np.diff(batch.host_starts[batch.single :]).astype(np.int64)
    contexts = batch.host_contexts[batch.single :].astype(np.int64)
    seen = (contexts - counts / 2) @ counts  # by all queries
    heads, made = up.weight.shape[:2]
    numbers = contexts.sum() * heads * (made + spec.rotary_dim)
    saved = seen * (2 * up.rank - made) - contexts.sum() * up.rank * made
    return bool(saved > 0 and numbers <= MOST)
