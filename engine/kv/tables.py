"""Block tables as one grid of numbers, a row for each running request, so that a step reads them at once."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np


class TableDelta(NamedTuple):
    """Cells of the flattened grid, and the blocks that they now hold."""

    cells: np.ndarray  # int64
    blocks: np.ndarray  # int32


NO_CHANGES = TableDelta(np.zeros(0, np.int64), np.zeros(0, np.int32))


class BlockTables:
    """Row `slot` lists the blocks of that slot's request. Cells beyond its end hold stale numbers.

    With several groups of layers, a row is their rows end to end. A request's blocks take turns among them.
    """

    def __init__(self, slots: int, width: int, groups: int = 1) -> None:
        """`width`: of a row, over all groups."""
        self.grid, self._groups = np.zeros((slots, width), np.int32), groups
        self._rows = self.grid.reshape(slots * groups, -1)
        self._written: dict[int, tuple[int, int]] = {}  # by row: columns written since take_changes
        self.clear()

    @property
    def free(self) -> int:
        return len(self._free)

    def open(self, blocks: Sequence[int]) -> int:
        """Return a slot for a request that starts to run with these blocks."""
        slot = self._free.pop()
        self.write(slot, 0, blocks)
        return slot

    def write(self, slot: int, at: int, blocks: Sequence[int]) -> None:
        """Write these blocks of the slot's request, the first of which is its block number `at`."""
        if (groups := self._groups) == 1:
            self._write(slot, at, blocks)
            return
        for skipped in range(min(groups, len(blocks))):
            row, group = divmod(at + skipped, groups)
            self._write(slot * groups + group, row, blocks[skipped::groups])

    def _write(self, row: int, at: int, blocks: Sequence[int]) -> None:
        end = at + len(blocks)
        self._rows[row, at:end] = blocks
        begin, last = self._written.get(row, (at, end))
        self._written[row] = min(begin, at), max(last, end)

    def listed(self, slot: int, count: int) -> list[int]:
        """The first `count` blocks of the slot's request."""
        groups = self._groups
        return (
            self._rows[slot * groups : (slot + 1) * groups, : -(-count // groups)].T.ravel()[:count].tolist()
        )

    def close(self, slot: int) -> None:
        self._free.append(slot)

    def clear(self) -> None:
        self._free = list(reversed(range(len(self.grid))))

    def take_changes(self) -> TableDelta:
        """The cells written since the last call."""
        if not self._written:
            return NO_CHANGES
        written, width = self._written, self._rows.shape[1]
        self._written = {}
        runs = (range(row * width + at, row * width + end) for row, (at, end) in written.items())
        cells = np.fromiter(chain.from_iterable(runs), np.int64)
        return TableDelta(cells, self.grid.reshape(-1)[cells])


class TableMirror:
    """The runner's copy of the grid. Only steps change it."""

    def __init__(self, slots: int, width: int, groups: int = 1) -> None:
        self.grid = np.zeros((slots, width), np.int32)
        each = width // groups
        self.grids = [self.grid[:, at * each : (at + 1) * each] for at in range(groups)]  # of each group
        self._flat = self.grid.reshape(-1)
        self._unsent: list[np.ndarray] = []  # cells that the device's copy lacks
        self._count = 0

    def apply(self, delta: TableDelta) -> None:
        if len(delta.cells):
            self._flat[delta.cells] = delta.blocks
            self._unsent.append(delta.cells)
            self._count += len(delta.cells)
            if self._count > 2 * self.grid.size:  # no device copy is ever made
                self.unsent()

    def unsent(self) -> TableDelta:
        """What changed since `sent`, each cell once. It stays unsent until `sent` is called."""
        if not self._unsent:
            return NO_CHANGES
        if len(self._unsent) > 1:
            self._unsent = [np.unique(np.concatenate(self._unsent))]
        [cells] = self._unsent
        self._count = len(cells)
        return TableDelta(cells, self._flat[cells])

    def sent(self) -> None:
        self._unsent.clear()
        self._count = 0
