"""Block tables as one grid of numbers, a row a running request, so that a step reads them at once."""

from collections.abc import Sequence

import numpy as np


class BlockTables:
    """Row `slot` lists the blocks of the request that runs there. Beyond its end a row holds old numbers."""

    def __init__(self, slots: int, width: int) -> None:
        self.grid = np.zeros((slots, width), np.int32)
        self.written: dict[int, tuple[int, int]] = {}  # by slot, the columns since a copy was last made
        self.clear()

    @property
    def free(self) -> int:
        return len(self._free)

    def open(self, blocks: Sequence[int]) -> int:
        """A slot for a request that starts to run with these blocks."""
        slot = self._free.pop()
        self.write(slot, 0, blocks)
        return slot

    def write(self, slot: int, at: int, blocks: Sequence[int]) -> None:
        end = at + len(blocks)
        self.grid[slot, at:end] = blocks
        begin, last = self.written.get(slot, (at, end))
        self.written[slot] = min(begin, at), max(last, end)

    def close(self, slot: int) -> None:
        self._free.append(slot)

    def clear(self) -> None:
        self._free = list(reversed(range(len(self.grid))))
