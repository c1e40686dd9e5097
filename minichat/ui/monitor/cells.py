"""From blocks to the cells of a map: a few array operations, whatever the number of blocks."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from engine.api.snapshot import BlockView, Snapshot

BRIGHT = 4  # levels by which an owner's cell tells how full it is
RAMP = 8  # levels of an age, a count or a share that has the map for itself
_NOBODY = 256  # in an order by session: after all owners


class State(IntEnum):
    """What a block is; of a cell's blocks the greatest counts."""

    FREE = 0
    LEFT = 1  # it left a request's window, and nobody has taken it since
    CACHED = 2
    USED = 3
    SHARED = 4


class Tint(StrEnum):
    """What the colour says."""

    OWNER = "owner"
    AGE = "age"
    REFERENCES = "references"
    FILL = "fill"


class Order(StrEnum):
    """Which blocks stand beside each other."""

    PHYSICAL = "physical"
    SESSION = "by session"


@dataclass(frozen=True, slots=True)
class Grid:
    """How blocks are spread over characters: several a cell where they are many, broad cells where few."""

    columns: int  # of cells
    lines: int  # of cells
    per: int  # blocks a cell
    span: int  # characters a cell is broad

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
        """The places of a cell's blocks in the order that is shown."""
        return range(min(cell * self.per, count), min((cell + 1) * self.per, count))


@dataclass(frozen=True, slots=True)
class Cells:
    """A column a property; as many entries as it takes to hold all blocks."""

    state: np.ndarray
    owner: np.ndarray  # the code of whoever has most of the blocks that count
    level: np.ndarray  # how bright


def states(blocks: BlockView) -> np.ndarray:
    held = np.minimum(blocks.refs, 2).astype(np.uint8)
    nobody = (blocks.owner >= 0).view(np.uint8) * np.uint8(State.CACHED)
    if blocks.left.any():
        nobody[blocks.left] = State.LEFT
    return np.where(held > 0, held + np.uint8(State.CACHED), nobody)


def session_order(state: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Blocks in use by owner, those not known last; then the cached by owner; then the free."""
    owner = np.where(codes > 0, codes, _NOBODY - 1).astype(np.uint16)
    room = np.where(state >= State.USED, 0, np.where(state == State.CACHED, _NOBODY, 2 * _NOBODY))
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
    """A cell is what the greatest state of its blocks is, and belongs to whoever has most of those in use."""
    blocks, step = shot.blocks, shot.step
    if order is not None:
        state, codes = state[order], codes[order]
    top = _rows(state, per).max(axis=1)
    if tint is Tint.OWNER or tint is Tint.FILL:
        tokens = _rows(_sorted(blocks.filled, order) * (state >= State.USED), per).sum(axis=1)
        levels = BRIGHT if tint is Tint.OWNER else RAMP
        level = np.maximum(-(-tokens * levels // (per * shot.block_size)) - 1, 0)
    elif tint is Tint.AGE:
        used_at = np.where(state >= State.USED, step, _sorted(blocks.used_at, order))
        level = _age(_rows(used_at, per, fill=-1).max(axis=1), step)
    else:
        level = np.minimum(_rows(_sorted(blocks.refs, order), per).max(axis=1), RAMP - 1)
    return Cells(top, _most(_rows(state, per), top, _rows(codes, per)), level.astype(np.uint8))


def _sorted(column: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return column if order is None else column[order]


def _rows(column: np.ndarray, per: int, fill: int = 0) -> np.ndarray:
    """A row a cell; the last one is filled up with what counts for nothing."""
    if per == 1:
        return column[:, None]
    missing = -len(column) % per
    if missing:
        column = np.concatenate([column, np.full(missing, fill, column.dtype)])
    return column.reshape(-1, per)


def _most(state: np.ndarray, top: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Of each cell the owner with most of the blocks that count; 0 where all are free."""
    cells, per = codes.shape
    # Shared blocks are in use, too: the owner is sought among both.
    counts = np.minimum(state, State.USED) == np.maximum(np.minimum(top, State.USED), State.CACHED)[:, None]
    if per == 1:
        return np.where(counts, codes, 0)[:, 0].astype(np.uint8)
    kinds = int(codes.max(initial=0)) + 1
    ballot = np.where(counts, codes, kinds)  # the last box is for those that do not count
    votes = np.bincount(
        (ballot + np.arange(cells)[:, None] * (kinds + 1)).ravel(), minlength=cells * (kinds + 1)
    )
    return votes.reshape(cells, kinds + 1)[:, :kinds].argmax(axis=1).astype(np.uint8)


def _age(used_at: np.ndarray, step: int) -> np.ndarray:
    """0 is now; each level is four times as long ago."""
    age = np.maximum(step - used_at, 0) + 1
    return np.minimum(np.log2(age) // 2, RAMP - 1)
