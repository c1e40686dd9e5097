"""Plain torch: the CPU backend, and the reference that other backends are tested against."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from engine.api.cache_spec import KV_SCHEMES, KvSchemeName, LayerSpec
from engine.attention.base import Batch, KVLayer, LatentProjections
from engine.attention.cells import AttentionRow, CacheCells, parts_of
from engine.attention.channels import ChannelCells
from engine.attention.registry import register
from engine.kernels.cpu.compiled import attention as compiled

TILES = (8, 64)  # minimum and maximum number of queries per product
SCORES = 2**21  # the scores of a tile should stay in the CPU cache until they are used
PIECE = 1024  # context tokens per pass of one query, so that their copy stays in the cache too
EXPANDED = 2**24  # most numbers of keys and values that are made from latents at once

# Returns keys and values [tokens, kv_heads, dim] of a row's positions from start to stop, in float32.
ReadCells = Callable[[int, int], tuple[Tensor, Tensor]]


class TorchMetadata:
    """The rows or the tokens of a step, which are made when they are first read."""

    def __init__(self, batch: Batch) -> None:
        self.places, self._batch = batch.places, batch

    @cached_property
    def tokens(self) -> compiled.StepTokens:
        """For the compiled kernel."""
        batch = self._batch
        rows = batch.host_tables, batch.host_starts, batch.host_contexts
        return compiled.StepTokens(batch.places, *rows, batch.block_size)

    @cached_property
    def rows(self) -> list[AttentionRow]:
        batch = self._batch
        tables, size = batch.host_tables, batch.block_size
        used = -(-batch.host_contexts // size)
        follows = np.diff(tables, axis=1) == 1
        follows |= np.arange(1, tables.shape[1]) >= used[:, None]
        scattered = ~follows.all(axis=1)
        starts, places = batch.host_starts, tables[:, 0].astype(np.int64) * size
        columns = (starts[:-1].tolist(), starts[1:].tolist(), batch.host_contexts.tolist(), places.tolist())
        lists: list[Tensor | None] = [None] * len(tables)
        apart = scattered.nonzero()[0]
        for n, table in zip(apart.tolist(), batch.tables[apart].unbind(0), strict=True):
            lists[n] = table
        return list(map(AttentionRow._make, zip(*columns, lists, strict=True)))


@register
class TorchAttention:
    """Computes row by row in float32, so a row's result does not depend on its batch.

    docs/attention-cpu.md compares the designs that were measured.
    """

    name: ClassVar[str] = "torch"
    kv_schemes: ClassVar[tuple[KvSchemeName, ...]] = KV_SCHEMES
    keeps_first: ClassVar[bool] = True
    chunks: ClassVar[bool] = True
    slopes: ClassVar[bool] = True

    @staticmethod
    def why_not(device: torch.device, spec: LayerSpec, dtype: torch.dtype) -> str | None:
        return None

    def prepare(self, batch: Batch) -> TorchMetadata:
        return TorchMetadata(batch)

    def write_cells(
        self, k: Tensor, v: Tensor | None, layer: KVLayer, metadata: TorchMetadata
    ) -> tuple[CacheCells, CacheCells]:
        """Write to the batch's cache slots, and return the layer's cells. `v`: None in a cache of latents."""
        keys = ChannelCells.of_keys(layer)
        values = CacheCells.of_layer(layer.values, layer.value_scales)
        keys.write(metadata.places, k, metadata.rows)
        if v is not None:
            values.write(metadata.places, v, metadata.rows)
        return keys, values

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: KVLayer, metadata: TorchMetadata) -> Tensor:
        if compiled.takes(layer, q):
            return metadata.tokens.attend(q, k, v, layer)
        cells = self.write_cells(k, v, layer, metadata)
        return _attend_rows(metadata.rows, q, *cells, layer).to(q.dtype)

    def attend_latents(
        self, q: Tensor, k: Tensor, up: LatentProjections, layer: KVLayer, metadata: TorchMetadata
    ) -> Tensor:
        cells = CacheCells.of_layer(layer.keys, None)
        cells.write(metadata.places, k, metadata.rows)
        up, scale = up.exact(), _float32(layer.spec.scale, q.device)
        out = scale.new_empty(*q.shape[:2], up.value)
        for row in metadata.rows:
            chunk = slice(row.start, row.stop)
            way = _expanded if up.expands(row.stop - row.start) else _absorbed
            # Each row has its own tensor, since a product's last bits depend on how its inputs are aligned.
            out[chunk] = way(row, q[chunk] * scale, up, cells, layer)
        return out.to(q.dtype)


def _attend_rows(
    rows: Sequence[AttentionRow], q: Tensor, keys: CacheCells, values: CacheCells, layer: KVLayer
) -> Tensor:
    """Attend for the last rows of a step, in float32. `q`: of all tokens."""
    spec, before = layer.spec, rows[0].start
    queries = q[before:].unflatten(1, (spec.kv_heads, -1)) * _float32(spec.scale, q.device)
    out = queries.new_empty(*queries.shape[:3], spec.value_dim)
    for row in chain.from_iterable(parts_of(row, spec.chunk) for row in rows):
        chunk = slice(row.start - before, row.stop - before)
        if row.stop - row.start == 1:
            _attend_token(row, queries[chunk.start], out[chunk.start], keys, values, layer)
        else:
            _attend_chunk(row, queries[chunk], out[chunk], _reader(row, keys, values), layer)
    return out.flatten(1, 2)


@cache
def _float32(scale: float, device: torch.device) -> Tensor:
    """A tensor with an axis, so that multiplying by it also converts to float32."""
    return torch.tensor([scale], dtype=torch.float32, device=device)


def _attend_token(
    row: AttentionRow, query: Tensor, out: Tensor, keys: CacheCells, values: CacheCells, layer: KVLayer
) -> None:
    """Attend for one token [kv_heads, group, key_dim] over its whole context or its window."""
    spec, end = layer.spec, row.context
    low = spec.oldest(end - 1)
    kept = min(spec.kept, low)

    def scored(start: int, stop: int) -> Tensor:
        scores = score(query, keys.of(row, start, stop).permute(1, 2, 0), spec.softcap)
        if layer.slopes is None:
            return scores
        distance = torch.arange(start - end + 1, stop - end + 1, device=query.device)
        return scores.add_(layer.slopes.view(len(scores), -1, 1) * distance)

    if not kept and end - low <= PIECE:
        scores = scored(low, end)
        torch.bmm(weigh(scores, layer.sinks), values.of(row, low, end).transpose(0, 1), out=out)
        return
    pieces = [(0, kept)] if kept else []
    pieces += [(at, min(at + PIECE, end)) for at in range(low, end, PIECE)]
    parts = [scored(*piece) for piece in pieces]
    weights = weigh(torch.cat(parts, -1), layer.sinks).split([part.shape[-1] for part in parts], -1)
    out.zero_()
    for piece, weight in zip(pieces, weights, strict=True):
        out.baddbmm_(weight, values.of(row, *piece).transpose(0, 1))


def _reader(row: AttentionRow, keys: CacheCells, values: CacheCells) -> ReadCells:
    return lambda start, stop: (keys.of(row, start, stop), values.of(row, start, stop))


def _absorbed(
    row: AttentionRow, q: Tensor, up: LatentProjections, cells: CacheCells, layer: KVLayer
) -> Tensor:
    """Attend from a row's tokens over latents, which serve all heads as one KV head."""
    queries = up.absorbed(q).unsqueeze(1)
    out = queries.new_empty(len(q), 1, len(up.weight), up.rank)
    values = CacheCells.of_layer(layer.values, None)
    if len(q) == 1:
        _attend_token(row, queries[0], out[0], cells, values, layer)
    else:
        _attend_chunk(row, queries, out, _reader(row, cells, values), layer)
    return up.outputs(out.squeeze(1))


def _expanded(
    row: AttentionRow, q: Tensor, up: LatentProjections, cells: CacheCells, layer: KVLayer
) -> Tensor:
    """Attend from a row's tokens over the keys and values made from latents, some heads at a time."""
    queries, out = q.unsqueeze(2), q.new_empty(*q.shape[:2], 1, up.value)
    step = max(1, EXPANDED // (row.context * (q.shape[2] + up.value)))
    for first in range(0, q.shape[1], step):
        heads = slice(first, first + step)
        read = _expander(row, cells, up.part(heads))
        _attend_chunk(row, queries[:, heads], out[:, heads], read, layer)
    return out.squeeze(2)


def _expander(row: AttentionRow, cells: CacheCells, up: LatentProjections) -> ReadCells:
    return lambda start, stop: up.expanded(cells.of(row, start, stop))


def _attend_chunk(row: AttentionRow, queries: Tensor, out: Tensor, read: ReadCells, layer: KVLayer) -> None:
    """Attend for tokens [count, kv_heads, group, key_dim], one tile at a time."""
    spec = layer.spec
    before = row.context - len(queries)  # tokens of the row from earlier chunks
    low = spec.oldest(before)
    window = spec.window or row.context - low
    keys, values = read(low, row.context)
    seen_keys, seen_values = keys.permute(1, 2, 0), values.transpose(0, 1)
    first_keys = first_values = None
    if spec.kept and row.context > window:  # first tokens that stay visible outside the window
        keys, values = read(0, min(spec.kept, row.context))
        first_keys, first_values = keys.permute(1, 2, 0), values.transpose(0, 1)
    width = min(row.context, spec.kept + window + TILES[1])
    heads = queries.shape[1] * queries.shape[2]
    step = min(max(SCORES // (heads * width), TILES[0]), TILES[1])
    for start in range(0, len(queries), step):
        tile = queries[start : start + step].transpose(0, 1)
        grid = tile.shape[1:3]
        first = before + start  # the position of the tile's first query
        oldest = max(low, first + 1 - window)
        seen = slice(oldest - low, first + grid[0] - low)
        tile_keys, tile_values = seen_keys[..., seen], seen_values[:, seen]
        before_it = min(spec.kept, oldest)
        if first_keys is not None and first_values is not None and before_it:
            tile_keys = torch.cat((first_keys[..., :before_it], tile_keys), -1)
            tile_values = torch.cat((first_values[:, :before_it], tile_values), 1)
        scores = score(tile.flatten(1, 2), tile_keys, spec.softcap)
        if layer.slopes is not None:
            at = torch.arange(oldest, first + grid[0], device=scores.device)
            at = torch.cat((torch.arange(before_it, device=scores.device), at)) if before_it else at
            distance = at - torch.arange(first, first + grid[0], device=scores.device)[:, None]
            scores.unflatten(1, grid).add_(layer.slopes.view(len(scores), 1, -1, 1) * distance[:, None])
        _hide(scores.unflatten(1, grid)[..., before_it:], window, max(0, spec.kept - oldest))
        product = torch.bmm(weigh(scores, layer.sinks), tile_values)
        out[start : start + step] = product.unflatten(1, grid).transpose(0, 1)


def score(queries: Tensor, keys: Tensor, cap: float | None) -> Tensor:
    """[kv_heads, queries, keys]; each query head of a group counts as a separate query."""
    scores = torch.bmm(queries, keys)
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _hide(scores: Tensor, window: int, kept: int) -> None:
    """Mask the keys after each query of [kv_heads, queries, group, keys] or before its window.

    The masked keys are in two corners, since the first query sees the first key and the last query the last.
    The first `kept` keys stay visible to every later query.
    """
    queries, keys = scores.shape[1], scores.shape[3]
    corner = torch.ones(queries, queries, dtype=torch.bool, device=scores.device)
    scores[..., keys - queries :].masked_fill_(corner.triu(1)[:, None], -torch.inf)
    if keys > window:
        past = corner.tril(keys - queries - window)[:, None, kept:]
        scores[..., kept:queries].masked_fill_(past, -torch.inf)


def weigh(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over keys. A sink is an extra score per head that has no value."""
    if sinks is None:
        return scores.softmax(-1)
    kv_heads, queries, _ = scores.shape
    column = sinks.to(scores.dtype).view(kv_heads, 1, -1)  # [kv_heads, 1, group]
    column = column.expand(-1, queries // column.shape[2], -1).reshape(kv_heads, queries, 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]
