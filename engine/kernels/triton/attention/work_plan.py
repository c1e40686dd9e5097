"""Plans the work of each program of a launch, with numpy on the host, as one table read on the device."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from engine.api.cache_spec import LayerSpec
from engine.kernels.triton.attention.tiles import Tile

# An item's columns: row of the block tables, first token in the batch, number of tokens, position of the
# first token, begin and end of the positions it attends to, index of its partial result (-1: it computes the
# final result), and the offset of the row's context if contexts are gathered, else its length (of chunks).
ITEM = 8  # columns; an item is 32 bytes
# A merge's columns: first token in the batch, number of tokens, first partial result, number of partials.
MERGE = 4
# A span's columns: row of the block tables, context length, offset among the gathered contexts.
SPAN = 4  # columns; the last one is unused


@dataclass(frozen=True, slots=True)
class Spans:
    """Contexts that are gathered before attention (gather.py)."""

    table: Tensor  # [rows, SPAN] int32
    longest: int  # longest context, with padding to whole turns
    cells: int  # total


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """One launch. Its items and merges are uploaded together."""

    tile: Tile
    items: Tensor  # [programs / kv_heads, ITEM] int32
    merges: Tensor  # [split tiles, MERGE] int32
    partials: int
    most: int  # most partial results of one merge
    spans: Spans | None = None


class Chunks(NamedTuple):
    """Tiles of queries, as columns: row, first token, number of tokens, position of the first token."""

    rows: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, first: int, starts: np.ndarray, contexts: np.ndarray, height: int) -> "Chunks":
        """Split rows, from `first` on, into tiles of `height` tokens. `starts` has an entry more than
        rows."""
        counts = np.diff(starts)
        tiles = -(-counts // height)
        at = np.repeat(np.arange(len(counts)), tiles)
        skipped = (np.arange(len(at)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * height
        return cls(
            at + first,
            starts[at] + skipped,
            np.minimum(height, counts[at] - skipped),
            contexts[at] - counts[at] + skipped,
        )


def plan_items(
    chunks: Chunks, spec: LayerSpec, tile: Tile, room: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the items, the merges, and the number of partial results. `room`: the most items and merges.

    Contexts are split if there are too few tiles to fill the GPU, and if one is much longer than the others,
    which would wait for it. The pieces of a context have equal length, rounded up to whole turns.
    """
    lows, ends = _oldest(chunks.positions, spec), chunks.positions + chunks.queries
    pieces, steps = _split(ends - lows, spec, tile, room)
    items = np.zeros((len(ends), ITEM), np.int32)  # one per context
    columns = chunks.rows, chunks.tokens, chunks.queries, chunks.positions, lows, ends, -1
    for column, values in enumerate(columns):
        items[:, column] = values
    (cut,) = (pieces > 1).nonzero()
    merges, partials = np.zeros((len(cut), MERGE), np.int32), 0
    if len(cut):
        parts = pieces[cut]
        ends = parts.cumsum()
        items[cut, 6], partials = ends - parts, int(ends[-1])
        split = items[cut]
        merges[:, :2], merges[:, 2], merges[:, 3] = split[:, 1:3], split[:, 6], parts
        at = np.arange(len(pieces)).repeat(pieces)
        items, steps = items[at], steps[at]
        before = np.arange(len(at)) - (pieces.cumsum() - pieces)[at]  # pieces of the same context
        items[:, 6] += before
        items[:, 4] += before * steps
        items[:, 5] = np.minimum(items[:, 4] + steps, items[:, 5])
    # Longest first, so that no long item is still running when the others are done.
    return items[(items[:, 4] - items[:, 5]).argsort(kind="stable")], merges, partials


def _split(
    lengths: np.ndarray, spec: LayerSpec, tile: Tile, room: tuple[int, int] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Into how many pieces each context is split, and how long they are, except for the last one."""
    mean = int(lengths.sum()) / max(1, len(lengths))
    fair = mean * min(2.0, len(lengths) * spec.kv_heads / tile.programs)
    while True:
        pieces = np.maximum(1, (lengths / fair + 0.5).astype(np.int64))
        steps = -(-lengths // (pieces * tile.keys)) * tile.keys
        pieces = -(-lengths // steps)
        if room is None or (pieces.sum() <= room[0] and np.count_nonzero(pieces > 1) <= room[1]):
            return pieces, steps
        fair *= 1.25


def _oldest(positions: np.ndarray, spec: LayerSpec) -> np.ndarray | int:
    """Like LayerSpec.oldest, for many positions."""
    if spec.chunk is not None:
        return positions - positions % spec.chunk
    return 0 if spec.window is None else np.maximum(0, positions + 1 - spec.window)


def plan_spans(first: int, contexts: np.ndarray, keys: int) -> tuple[np.ndarray, int, int]:
    """Return the spans of rows from `first` on, in whole turns of `keys`, the longest, and the total."""
    taken = -(-contexts // keys) * keys
    spans = np.zeros((len(contexts), SPAN), np.int32)
    spans[:, 0], spans[:, 1], spans[:, 2] = first + np.arange(len(taken)), contexts, np.cumsum(taken) - taken
    return spans, int(taken.max()), int(taken.sum())
