"""A tier on disk. Blocks outlive the engine, and engines on the same machine share them.

A store ends once the blocks are copied to memory; a thread writes them later. What it cannot write, or finds
altered when it reads, is a block less, never a wrong one: a block's checksum covers its name and its bytes.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from errno import ENOSPC
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from engine.api.events import log
from engine.kv.tiers.cost import MeasuredCost
from engine.kv.tiers.disk_index import DiskIndex, DiskSlot, reason_of
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer, front

_PAGE = 4096  # slots start at multiples of it
_TOGETHER = 2**24  # bytes in one transaction, during which other engines wait
_READERS = 8  # a checksum takes as long as reading from a fast disk
PAUSE = 30.0  # seconds to wait after the disk failed, before the next try
LAST = 2.0  # seconds to write what waits when the engine ends
_LOOK = 1.0  # seconds between checks for blocks of other engines


class DiskTier(Tier):
    name = "disk"
    persistent = True

    def __init__(
        self,
        folder: Path,
        room: int,
        block_bytes: Callable[[], int],
        *,
        waiting: int = 2**28,
        part: int = 2**26,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """`room`: bytes on disk, for the shares of all ranks. `block_bytes`: of a block of the cache in its
        present scheme, or of this rank's share. `waiting`: the most bytes that wait in memory to be written.
        `part`: how many a thread loads at a time.
        """
        self._rank, self._ranks = rank, ranks
        self.cost, self.problem = MeasuredCost(), ""
        self._folder, self._room, self._block_bytes = folder, room, block_bytes
        self._memory, self._most_waiting, self._part = waiting, min(waiting, room), part
        self._index: DiskIndex | None = DiskIndex(folder, room)
        self._writer = ThreadPoolExecutor(1, "kv-disk-writer")  # the only thread that uses the index
        self._readers = ThreadPoolExecutor(_READERS, "kv-disk-reader")
        self._copier = ThreadPoolExecutor(2, "kv-disk-copier")  # loads from a slow disk do not delay it
        self._loads: set[Future[float]] = set()  # under way
        self._waiting: dict[BlockName, np.ndarray | None] = {}  # not written yet; None: not copied yet
        self._refused: set[BlockName] = set()  # of chats that were deleted meanwhile
        self._retry_at = self._look_at = 0.0
        self._ended = False  # waiting blocks are not written
        self._measure()
        self._guarded(DiskIndex.shrink)  # an earlier engine may have had more room
        self._guarded(self._look)  # now, so that the first request finds the blocks of earlier engines

    @property
    def size(self) -> int:
        """As if the shares of all ranks were as large as this one: those of stages may differ."""
        return self._room // (self._stride * self._ranks)

    @property
    def used(self) -> int:
        self._look_soon()  # a later snapshot shows what other programs have stored or cleared
        stored = len(self._slots)
        return max(stored, min(stored + len(self._waiting), self.size))  # what waits may replace others

    def room(self) -> int:
        if self.problem and time.monotonic() < self._retry_at:
            return 0
        return max(0, self._most_waiting // self._stride - len(self._waiting))

    def holds(self, names: Sequence[BlockName]) -> int:
        self._look_soon()
        return front(names, lambda name: name in self._slots or name in self._waiting)

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        copied = blocks.read()
        self._waiting.update(dict.fromkeys(names))
        self.problem = self.problem or self._behind(1.0)
        return self._copier.submit(self._copy, tuple(names), copied)

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        began, most = time.monotonic(), max(1, self._part // self._stride)
        parts = [(tuple(names[at : at + most]), at) for at in range(0, len(names), most)]
        loads = [self._readers.submit(self._load, part, blocks, at) for part, at in parts]
        self._loads.update(loads)
        for each in loads:
            each.add_done_callback(self._loads.discard)
        return _Parts(began, loads)

    def own(self, names: Sequence[BlockName], owner: str) -> None:
        self._writer.submit(self._guarded, partial(self._own, names, owner))

    def release(self, names: Sequence[BlockName]) -> None:
        self.forget(names)

    def forget(self, names: Sequence[BlockName]) -> None:
        for name in names:
            self._slots.pop(name, None)
        self._writer.submit(self._guarded, partial(self._forget, names))

    def reset(self) -> None:
        self._measure()
        self._writer.submit(self._guarded, self._look_again)  # blocks of this scheme may be there already

    def _measure(self) -> None:
        """Forget the blocks of another scheme, and take the size of one in the present scheme."""
        self._nbytes = self._block_bytes()
        self._stride = _stride(self._nbytes)
        self._slots: dict[BlockName, DiskSlot] = {}
        self._generation = -1
        self._look_at = 0.0
        self.problem = self._too_small()
        if self.problem:
            log.warning("no blocks are stored on disk: %s", self.problem)

    def flush(self) -> None:
        """Wait until everything is written that was stored before."""
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Write what waits, but not for long: it is a cache, and its disk may not answer."""
        self._copier.shutdown()
        for load in (loads := list(self._loads)):
            load.cancel()
        last: list[Future[Any]] = [*loads, self._writer.submit(self._end)]
        working = wait(last, LAST).not_done
        self._ended = True
        for pool in self._readers, self._writer:
            pool.shutdown(wait=not working)

    def _look_soon(self) -> None:
        if time.monotonic() >= self._look_at and not self._ended:
            self._look_at = time.monotonic() + _LOOK
            self._writer.submit(self._guarded, self._look)

    def _too_small(self) -> str:
        """A sentence if there is not even room for one block."""
        if self.size:
            return ""
        mb = self._stride * self._ranks / 1e6, self._room / 1e6
        return f"{self._folder}: a block takes {mb[0]:,.1f} MB, and there is room for {mb[1]:,.1f} MB"

    def _behind(self, share: float, but: int = 0) -> str:
        """A sentence if this share of what may wait to be written does, `but` for these."""
        waiting = len(self._waiting) - but
        if waiting < max(1, share * (self._memory // self._stride)):  # a small room is full, but not behind
            return ""
        return f"{self._folder}: {waiting:,} blocks wait to be written, so no more are taken"

    # On a reader's thread

    def _copy(self, names: tuple[BlockName, ...], copied: Callable[[], np.ndarray]) -> float:
        began = time.monotonic()
        try:
            rows = copied()
        except BaseException:
            for name in names:
                self._waiting.pop(name, None)
            raise
        self._waiting.update(zip(names, rows, strict=True))
        most = max(1, _TOGETHER // self._stride)
        for at in range(0, len(names), most):
            part = names[at : at + most]
            self._writer.submit(self._guarded, partial(self._write, part), part)
        return time.monotonic() - began

    def _load(self, names: tuple[BlockName, ...], blocks: DeviceBlocks, at: int) -> float:
        """Fill the device's blocks from the index `at` on; return when that ended."""
        if not all(name in self._slots or name in self._waiting for name in names):
            self._writer.submit(self._guarded, self._look).result()  # another engine may have stored them
        rows = blocks.buffer(len(names), self._nbytes)
        files: dict[int, int] = {}
        try:
            for name, row in zip(names, rows, strict=True):
                self._read(name, row, files)
        finally:
            for file in files.values():
                os.close(file)
        blocks.write(rows, at)
        self._writer.submit(self._guarded, lambda index: index.touch(names))
        return time.monotonic()

    def _read(self, name: BlockName, row: np.ndarray, files: dict[int, int]) -> None:
        if (waiting := self._waiting.get(name)) is not None:
            row[:] = waiting
            return
        if (slot := self._slots.get(name)) is None:
            raise OSError(f"block {name.hex()[:12]} is gone from {self._folder}")
        try:
            if slot.file not in files:
                files[slot.file] = os.open(self._folder / f"{slot.file}.kv", os.O_RDONLY)
            read = os.preadv(files[slot.file], [row.data], slot.offset)
        except FileNotFoundError:
            read = 0
        if read != self._nbytes or _checksum(name, row) != slot.sum:
            self.forget([name])
            raise OSError(f"block {name.hex()[:12]} in {self._folder / f'{slot.file}.kv'} is damaged or gone")

    # On the writer's thread

    def _guarded(self, work: Callable[[DiskIndex], None], names: Sequence[BlockName] = ()) -> None:
        """Run work on the index. After an error nothing is written for a while, and `names` are dropped."""
        try:
            if self._ended:
                return
            if self._index is None and time.monotonic() >= self._retry_at:
                self._index = DiskIndex(self._folder, self._room)
                self._generation = -1
            if self._index is not None:
                work(self._index)
        except (OSError, sqlite3.Error) as error:
            self._fail(error)
        except Exception as error:
            log.exception("the disk tier failed")
            self._fail(error)
        finally:
            for name in names:
                self._waiting.pop(name, None)

    def _end(self) -> None:
        self._ended = True
        self._close()

    def _close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def _fail(self, error: Exception) -> None:
        problem = f"{self._folder}: {reason_of(error, self._folder)}"
        if problem != self.problem:
            log.warning("no blocks are stored on disk for now: %s", problem)
        self.problem, self._retry_at = problem, time.monotonic() + PAUSE
        if self._index is not None and _lost(error):
            self._close()
            self._slots = {}

    def _look_again(self, index: DiskIndex) -> None:
        self._generation = -1  # here, because a look that ran during the reset may have set it
        self._look(index)

    def _look(self, index: DiskIndex) -> None:
        """Notice blocks that other engines, or earlier ones, stored or dropped."""
        if self._generation != (generation := index.generation):
            self._generation, self._slots = generation, index.slots(self._stride, self._rank)

    def _write(self, names: Sequence[BlockName], index: DiskIndex) -> None:
        rows = {name: row for name in names if (row := self._waiting.get(name)) is not None}
        kept = [name for name in rows if name not in self._refused]
        self._refused.difference_update(names)
        stride = _stride(max(map(len, rows.values()), default=self._nbytes))  # maybe of the scheme before
        files: dict[int, int] = {}
        evicted: list[BlockName] = []

        def write(at: int, slot: DiskSlot) -> bytes:
            if slot.file not in files:
                path = index.path(slot.file)
                files[slot.file] = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            row = rows[kept[at]]
            if os.pwrite(files[slot.file], row.data, slot.offset) != len(row):
                raise OSError(ENOSPC, os.strerror(ENOSPC))  # a part of the block was written
            return _checksum(kept[at], row)

        try:
            stored = index.put(kept, stride, write, evicted)
            for name in evicted:
                self._slots.pop(name, None)
            if stride == self._stride:
                self._slots |= stored
            self.problem = self._behind(0.5, but=len(names))
        finally:
            for file in files.values():
                os.close(file)

    def _own(self, names: Sequence[BlockName], owner: str, index: DiskIndex) -> None:
        if index.own(names, owner):
            return
        self._refused.update(name for name in names if name not in self._slots)
        self._slots = index.slots(self._stride, self._rank)

    def _forget(self, names: Sequence[BlockName], index: DiskIndex) -> None:
        index.drop(names)
        for name in names:
            self._slots.pop(name, None)


class _Parts(Transfer):
    """A load in parts, each of which returns when it ended."""

    def __init__(self, began: float, parts: Sequence[Future[float]]) -> None:
        self._began, self._parts = began, parts

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def result(self) -> float:
        wait(self._parts)  # all of them, even after an error: they write to blocks that it frees
        return max(part.result() for part in self._parts) - self._began


def _stride(nbytes: int) -> int:
    """The bytes of a slot for a block."""
    return -(-nbytes // _PAGE) * _PAGE


def _checksum(name: BlockName, row: np.ndarray) -> bytes:
    digest = sha256(name)
    digest.update(row.data)
    return digest.digest()


def _lost(error: Exception) -> bool:
    """Whether the index must be opened again. A disk that is full, busy or read-only can still be read."""
    if isinstance(error, sqlite3.Error):
        readable = sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY
        return getattr(error, "sqlite_errorcode", None) not in readable
    return isinstance(error, FileNotFoundError)
