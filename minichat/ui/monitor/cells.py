"""Turns KV blocks into the cells of the map with a few array operations, for any number of blocks."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from engine.api.snapshot import BlockView, Snapshot

BRIGHT = 4  # brightness levels of an owner's cell, by how full it is
RAMP = 8  # levels of the ramp for an age, a count or a share
_NO_OWNER = 256  # sorts after all owners


class State(IntEnum):
    """The state of a block. A cell shows the greatest state of its blocks."""

    FREE = 0
    DROPPED = 1  # slid out of a request's attention window; not reused yet
    CACHED = 2
    USED = 3
    SHARED = 4


class Tint(StrEnum):
    """What the color shows."""

    OWNER = "owner"
    AGE = "age"
    REFERENCES = "references"
    FILL = "fill"
    TIER = "tier"  # whether it was copied to a tier below the device, or loaded from one


class Order(StrEnum):
    """The order of the blocks on the map."""

    PHYSICAL = "physical"
    SESSION = "by session"


@dataclass(frozen=True, slots=True)
class Grid:
    """How blocks map to characters: several blocks per cell if there are many, wide cells if few."""

    columns: int  # of cells
    lines: int  # of cells
    per: int  # blocks per cell
    span: int  # characters per cell

    @classmethod
    def fit(cls, blocks: int, width: int, lines: int, broadest: int = 4) -> "Grid":
        for span in range(min(broadest, width), 1, -1):
            if (width // span) * lines >= blocks:
                return cls(width // span, lines, 1, span)
        return cls(width, lines, max(1, -(-blocks // (width * lines))), 1)

    @property
    def cells(self) -> int:
        return self.columns * self.lines

    def blocks(self, cell: int, count: int) -> range:
        """The positions of a cell's blocks in the order shown."""
        return range(min(cell * self.per, count), min((cell + 1) * self.per, count))


@dataclass(frozen=True, slots=True)
class Cells:
    """One array per property, with one entry per cell."""

    state: np.ndarray
    owner: np.ndarray  # the code of the owner with the most blocks in the state shown
    level: np.ndarray  # brightness


def states(blocks: BlockView) -> np.ndarray:
    held = np.minimum(blocks.refs, 2).astype(np.uint8)
    unheld = (blocks.owner >= 0).view(np.uint8) * np.uint8(State.CACHED)
    if blocks.left.any():
        unheld[blocks.left] = State.DROPPED
    return np.where(held > 0, held + np.uint8(State.CACHED), unheld)


def moves(blocks: BlockView) -> np.ndarray:
    """`BlockView.moved`, also of an engine that does not report it."""
    return blocks.moved if len(blocks.moved) else np.zeros(len(blocks.refs), np.int8)


def session_order(state: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Sort blocks: used ones by owner (unknown owners last), then cached ones by owner, then free ones."""
    owner = np.where(codes > 0, codes, _NO_OWNER - 1).astype(np.uint16)
    room = np.where(state >= State.USED, 0, np.where(state == State.CACHED, _NO_OWNER, 2 * _NO_OWNER))
    rank = np.where(state == State.FREE, 0, owner) + room
    return np.argsort(rank.astype(np.uint16), kind="stable")


def aggregate(
    shot: Snapshot,
    state: np.ndarray,
    codes: np.ndarray,
    per: int,
    tint: Tint,
    order: np.ndarray | None = None,
) -> Cells:
    """Return the cells: the greatest state of their blocks, and the owner of most blocks in that state."""
    blocks, step = shot.blocks, shot.step
    if order is not None:
        state, codes = state[order], codes[order]
    top = _rows(state, per).max(axis=1)
    if tint is Tint.OWNER or tint is Tint.FILL:
        tokens = _rows(_sorted(blocks.filled, order) * (state >= State.USED), per).sum(axis=1)
        levels = BRIGHT if tint is Tint.OWNER else RAMP
        level = np.maximum(-(-tokens * levels // (per * shot.block_size)) - 1, 0)
    elif tint is Tint.TIER:
        level = _rows(_sorted(moves(blocks), order) * (state >= State.CACHED), per).max(axis=1)
    elif tint is Tint.AGE:
        used_at = np.where(state >= State.USED, step, _sorted(blocks.used_at, order))
        level = _age(_rows(used_at, per, fill=-1).max(axis=1), step)
    else:
        level = np.minimum(_rows(_sorted(blocks.refs, order), per).max(axis=1), RAMP - 1)
    return Cells(top, _most(_rows(state, per), top, _rows(codes, per)), level.astype(np.uint8))


def _sorted(column: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return column if order is None else column[order]


def _rows(column: np.ndarray, per: int, fill: int = 0) -> np.ndarray:
    """Reshape to one row per cell. The last row is padded with `fill`."""
    if per == 1:
        return column[:, None]
    missing = -len(column) % per
    if missing:
        column = np.concatenate([column, np.full(missing, fill, column.dtype)])
    return column.reshape(-1, per)


def _most(state: np.ndarray, top: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The owner with the most blocks in each cell's state; 0 if all are free."""
    cells, per = codes.shape
    # Shared blocks are in use, too, so they count with the used ones.
    counts = np.minimum(state, State.USED) == np.maximum(np.minimum(top, State.USED), State.CACHED)[:, None]
    if per == 1:
        return np.where(counts, codes, 0)[:, 0].astype(np.uint8)
    kinds = int(codes.max(initial=0)) + 1
    bins = np.where(counts, codes, kinds)  # the last bin is for blocks in other states
    votes = np.bincount(
        (bins + np.arange(cells)[:, None] * (kinds + 1)).ravel(), minlength=cells * (kinds + 1)
    )
    return votes.reshape(cells, kinds + 1)[:, :kinds].argmax(axis=1).astype(np.uint8)


def _age(used_at: np.ndarray, step: int) -> np.ndarray:
    """Return the age level: 0 is now; each level is four times older."""
    age = np.maximum(step - used_at, 0) + 1
    return np.minimum(np.log2(age) // 2, RAMP - 1)
