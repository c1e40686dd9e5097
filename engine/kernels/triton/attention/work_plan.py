"""Plans the work of each program of a launch, with numpy on the host, as one table read on the device."""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Chunks:
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
    ends = chunks.positions + chunks.queries
    lows = _oldest(chunks.positions, spec)
    lengths = ends - lows
    mean = lengths.sum() / max(1, len(lengths))
    fair = mean * min(2.0, len(lengths) * spec.kv_heads / tile.programs)
    while True:
        pieces = np.maximum(1, (lengths / fair + 0.5).astype(np.int64))
        steps = -(-lengths // (pieces * tile.keys)) * tile.keys
        pieces = -(-lengths // steps)
        if room is None or (pieces.sum() <= room[0] and (pieces > 1).sum() <= room[1]):
            break
        fair *= 1.25

    at = np.repeat(np.arange(len(pieces)), pieces)
    firsts = np.cumsum(pieces) - pieces
    begin = lows[at] + (np.arange(len(at)) - firsts[at]) * steps[at]
    cut = pieces > 1
    slots = np.where(cut[at], np.cumsum(cut[at]) - 1, -1)
    items = np.zeros((len(at), ITEM), np.int32)
    columns = (chunks.rows, chunks.tokens, chunks.queries, chunks.positions)
    for column, values in enumerate(columns):
        items[:, column] = values[at]
    items[:, 4], items[:, 5], items[:, 6] = begin, np.minimum(begin + steps[at], ends[at]), slots
    merges = np.stack((chunks.tokens, chunks.queries, slots[firsts], pieces), axis=1)[cut].astype(np.int32)
    # Longest first, so that no long item is still running when the others are done.
    return items[np.argsort(items[:, 4] - items[:, 5], kind="stable")], merges, int(cut[at].sum())


def _oldest(positions: np.ndarray, spec: LayerSpec) -> np.ndarray:
    """Like LayerSpec.oldest, for many positions."""
    if spec.chunk is not None:
        return positions - positions % spec.chunk
    return np.zeros_like(positions) if spec.window is None else np.maximum(0, positions + 1 - spec.window)


def plan_spans(first: int, contexts: np.ndarray, keys: int) -> tuple[np.ndarray, int, int]:
    """Return the spans of rows from `first` on, in whole turns of `keys`, the longest, and the total."""
    taken = -(-contexts // keys) * keys
    spans = np.zeros((len(contexts), SPAN), np.int32)
    spans[:, 0], spans[:, 1], spans[:, 2] = first + np.arange(len(taken)), contexts, np.cumsum(taken) - taken
    return spans, int(taken.max()), int(taken.sum())
