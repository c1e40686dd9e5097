"""The disk tier while the cache changes its scheme: blocks of each one stay, and are found again."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.kv.tiers.disk import DiskTier
from engine.kv.tiers.disk_index import DiskIndex
from engine.kv.tiers.tier import DeviceBlocks

ROOM = 64 * 4096
LARGE, SMALL = 8192, 4096


class Blocks(DeviceBlocks):
    """Blocks of the device that all hold the same bytes."""

    numbers = (0,)

    def __init__(self, count: int, nbytes: int) -> None:
        self.rows = np.full((count, nbytes), 7, np.uint8)

    def buffer(self, count: int, nbytes: int) -> np.ndarray:
        return np.zeros((count, nbytes), np.uint8)

    def write(self, data: np.ndarray, at: int = 0) -> None:
        assert (data == 7).all()

    def read(self) -> Callable[[], np.ndarray]:
        return lambda: self.rows


def test_blocks_of_a_scheme_are_found_as_soon_as_it_is_back(tmp_path: Path) -> None:
    """Not only by the second request."""
    nbytes = LARGE
    tier = DiskTier(tmp_path, ROOM, lambda: nbytes)
    tier.store([b"one", b"two"], Blocks(2, LARGE)).result()
    tier.flush()
    for scheme, found in (SMALL, 0), (LARGE, 2):
        nbytes = scheme
        tier.reset()
        tier.flush()
        assert tier.used == found and tier.holds([b"one", b"two"]) == found
        tier.flush()  # the look at the disk that the question began
    tier.close()


def test_blocks_that_wait_during_a_change_are_written_in_their_own_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, write = threading.Event(), os.pwrite

    def slow(*args: object) -> int:
        assert gate.wait(20)
        return write(*args)

    monkeypatch.setattr(os, "pwrite", slow)
    nbytes = LARGE
    tier = DiskTier(tmp_path, ROOM, lambda: nbytes)
    tier.store([b"first"], Blocks(1, LARGE)).result()  # holds up the writer
    tier.store([b"one", b"two"], Blocks(2, LARGE)).result()
    nbytes = SMALL
    tier.reset()
    gate.set()
    tier.flush()
    assert tier.used == 0
    tier.close()
    assert {*DiskIndex(tmp_path, ROOM).slots(LARGE)} == {b"first", b"one", b"two"}
    again = DiskTier(tmp_path, ROOM, lambda: LARGE)
    again.load([b"first", b"one", b"two"], Blocks(3, LARGE)).result()
    again.close()
