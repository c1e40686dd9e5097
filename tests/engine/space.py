"""The cells of a ledger, on its device and in its host memory."""

from collections.abc import Callable

import numpy as np

from engine.kv.tiers.host import Pairs
from engine.kv.tiers.tier import CompletedTransfer, Transfer

EMPTY = -1


class LedgerBlocks:
    """Device blocks of a ledger, as a tier sees them."""

    def __init__(self, cells: np.ndarray, numbers: tuple[int, ...]) -> None:
        self.numbers, self._cells = numbers, cells

    def read(self) -> Callable[[], np.ndarray]:
        data = self._cells[list(self.numbers)].view(np.uint8)
        return lambda: data

    def buffer(self, count: int, nbytes: int) -> np.ndarray:
        return np.empty((count, nbytes), np.uint8)

    def write(self, data: np.ndarray, at: int = 0) -> None:
        self._cells[list(self.numbers[at : at + len(data)])] = np.ascontiguousarray(data).view(np.int64)

    def move(self, *works: Callable[[], None]) -> Transfer:
        for work in works:
            work()
        return CompletedTransfer(0.0001 * len(self.numbers))


class LedgerSpace:
    """The cells of the device and those in host memory."""

    def __init__(self, blocks: int, host: int, size: int) -> None:
        """`size`: numbers of a block."""
        self.cells, self.host = (np.full((count, size), EMPTY, np.int64) for count in (blocks, host))
        self.host_blocks = host

    def host_ready(self, *, least: int = 0) -> int:
        return self.host_blocks

    def close(self) -> None: ...

    def swap_out(self, pairs: Pairs) -> None:
        for block, host in pairs:
            self.host[host] = self.cells[block]

    def swap_in(self, pairs: Pairs) -> None:
        for host, block in pairs:
            self.cells[block] = self.host[host]
