"""A third-party tier: one file per block, written and read on a thread."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from engine.kv.tiers.cost import MeasuredCost
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer, front


class FileTier(Tier):
    """Its transfers are futures, so no step waits for the file system."""

    name = "files"

    def __init__(self, folder: Path, size: int) -> None:
        self._size, self.cost = size, MeasuredCost()
        self._folder, self._names = folder, set[BlockName]()
        self._thread = ThreadPoolExecutor(1, "files")

    @property
    def size(self) -> int:
        return self._size

    def room(self) -> int:
        return self.size - len(self._names)

    def holds(self, names: Sequence[BlockName]) -> int:
        return front(names, self._names.__contains__)

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        if len(names) > self.room():
            raise OSError(f"{self._folder} has room for {self.room()} blocks")
        self._names.update(names)
        data = blocks.read()
        return self._timed(lambda: self._write(names, data()))

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        return self._timed(lambda: blocks.write(self._read(names)))

    def release(self, names: Sequence[BlockName]) -> None:
        self._names.difference_update(names)
        for name in names:
            self._file(name).unlink(missing_ok=True)

    def forget(self, names: Sequence[BlockName]) -> None:
        self.release(names)

    def reset(self) -> None:
        self.release([*self._names])

    def _timed(self, work: Callable[[], None]) -> Future[float]:
        def timed() -> float:
            began = time.monotonic()
            work()
            return time.monotonic() - began

        return self._thread.submit(timed)

    def _write(self, names: Sequence[BlockName], data: np.ndarray) -> None:
        for name, block in zip(names, data, strict=True):
            self._file(name).write_bytes(block.tobytes())

    def _read(self, names: Sequence[BlockName]) -> np.ndarray:
        return np.stack([np.fromfile(self._file(name), np.uint8) for name in names])

    def _file(self, name: BlockName) -> Path:
        return self._folder / name.hex()
