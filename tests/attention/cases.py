"""Random batches over a paged cache, for the tests of any backend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.attention.base import Batch, KVLayer


@dataclass(frozen=True)
class Case:
    """One layer's cache with earlier tokens, and the step to run on it."""

    batch: Batch
    layer: KVLayer
    q: Tensor
    k: Tensor
    v: Tensor

    def copy(self) -> "Case":
        names = ("keys", "values", "key_scales", "value_scales", "channels", "channel_scales")
        own = {name: each.clone() for name in names if (each := getattr(self.layer, name)) is not None}
        return replace(self, layer=replace(self.layer, **own))


def make_batch(rows: Sequence[tuple[int, int]], tables: Sequence[Sequence[int]], block_size: int) -> Batch:
    """`rows` are (tokens in this step, tokens attended to); rows of one token come first."""
    counts = np.array([count for count, _ in rows])
    contexts = np.array([context for _, context in rows], np.int32)
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    grid = np.zeros((len(rows), max(map(len, tables))), np.int32)
    for row, table in enumerate(tables):
        grid[row, : len(table)] = table
    positions = np.concatenate([np.arange(context - count, context) for count, context in rows])
    row_of = np.repeat(np.arange(len(rows)), counts)
    places = grid[row_of, positions // block_size].astype(np.int64) * block_size + positions % block_size
    return Batch(
        ids=torch.zeros(len(positions), dtype=torch.int64),
        positions=torch.from_numpy(positions),
        places=torch.from_numpy(places),
        starts=torch.from_numpy(starts),
        contexts=torch.from_numpy(contexts),
        tables=torch.from_numpy(grid),
        single=int((counts == 1).sum()),
        block_size=block_size,
        host_starts=starts,
        host_contexts=contexts,
        host_tables=grid,
    )


def make_case(
    spec: LayerSpec,
    rows: Sequence[tuple[int, int]],
    *,
    block_size: int = 16,
    shuffled: bool = False,
    sinks: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """Unwritten cells hold NaN, so reading one shows in the result.

    The same seed gives the same numbers, shuffled or not, with any block size.
    """
    spec = replace(spec, sinks=sinks)
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).to(dtype)

    needed = [-(-context // block_size) for _, context in rows]
    blocks = sum(needed) + 3
    order = np.random.default_rng(seed).permutation(blocks) if shuffled else np.arange(blocks)
    tables = [part.tolist() for part in np.split(order[: sum(needed)], np.cumsum(needed)[:-1])]
    keys = torch.full((blocks, block_size, spec.kv_heads, spec.key_dim), torch.nan, dtype=dtype)
    values = torch.full((blocks, block_size, spec.kv_heads, spec.value_dim), torch.nan, dtype=dtype)
    for (count, context), table in zip(rows, tables, strict=True):
        for position in range(context - count):
            cell = table[position // block_size], position % block_size
            keys[cell] = normal(spec.kv_heads, spec.key_dim)
            values[cell] = normal(spec.kv_heads, spec.value_dim)
    tokens = sum(count for count, _ in rows)
    layer = KVLayer(spec, keys, values, normal(spec.heads) if sinks else None)
    q = normal(tokens, spec.heads, spec.key_dim)
    k, v = normal(tokens, spec.kv_heads, spec.key_dim), normal(tokens, spec.kv_heads, spec.value_dim)
    return Case(make_batch(rows, tables, block_size), layer, q, k, v)
