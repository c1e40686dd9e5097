"""What each program of a launch does, laid out on the host with numpy and read on the device as one table."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.kernels.triton.attention.tiles import Tile

# An item's columns: row of the block tables, first token in the batch, how many tokens, the position of the
# first, the span of positions it attends to, where its partial result goes (-1: it has the whole result), and
# where the row's context begins, if contexts are gathered.
ITEM = 8  # columns: an item lies within 32 bytes
# A merge's columns: first token in the batch, how many tokens, its first partial result, how many partials.
MERGE = 4
# A span's columns: row of the block tables, its context, where that begins among the gathered ones.
SPAN = 4  # columns, the last one unused


@dataclass(frozen=True, slots=True)
class Spans:
    """Contexts that are laid out in one piece before tiles of queries meet them (gather.py)."""

    table: Tensor  # [rows, SPAN] int32
    longest: int  # context, with what fills its last turn
    cells: int  # of all


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """A launch on the device. Its items and merges are one upload."""

    tile: Tile
    items: Tensor  # [programs / kv_heads, ITEM] int32
    merges: Tensor  # [tiles that were cut, MERGE] int32
    partials: int
    most: int  # partial results of one merge
    spans: Spans | None = None


@dataclass(frozen=True, slots=True)
class Chunks:
    """Tiles of queries, a column each: which row, which tokens, at which position the first one stands."""

    rows: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, first: int, starts: np.ndarray, contexts: np.ndarray, height: int) -> "Chunks":
        """Rows from `first` on, `height` tokens a tile. `starts` has one entry more than there are rows."""
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
    chunks: Chunks, window: int | None, kv_heads: int, tile: Tile, most: int | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Items, at most so many, merges, and how many partial results there will be.

    Contexts are cut where there are too few tiles to fill the GPU, and where one is far longer than the
    others, which would wait for it. The pieces of one context are of equal length, to the next full turn.
    """
    ends = chunks.positions + chunks.queries
    lows = np.zeros_like(ends) if window is None else np.maximum(0, chunks.positions + 1 - window)
    lengths = ends - lows
    mean = lengths.sum() / len(lengths)
    fair = mean * min(2.0, len(lengths) * kv_heads / tile.programs)
    while True:
        pieces = np.maximum(1, (lengths / fair + 0.5).astype(np.int64))
        steps = -(-lengths // (pieces * tile.keys)) * tile.keys
        pieces = -(-lengths // steps)
        if most is None or pieces.sum() <= most:
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
    # The longest start first: none is still running when the others are done.
    return items[np.argsort(items[:, 4] - items[:, 5], kind="stable")], merges, int(cut[at].sum())


def plan_spans(first: int, contexts: np.ndarray, keys: int) -> tuple[np.ndarray, int, int]:
    """The spans of rows from `first` on, each of whole turns of so many keys; the longest, and their sum."""
    taken = -(-contexts // keys) * keys
    spans = np.zeros((len(contexts), SPAN), np.int32)
    spans[:, 0], spans[:, 1], spans[:, 2] = first + np.arange(len(taken)), contexts, np.cumsum(taken) - taken
    return spans, int(taken.max()), int(taken.sum())
