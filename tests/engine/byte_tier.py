"""A tier of bytes with configurable delays and failures, and a queue that admits no request."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from engine.kv.tiers.cost import MeasuredCost
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer, front
from engine.serving.engine import Engine


@dataclass
class DelayedTransfer:
    """A transfer that moves its data only after `looks` polls, or once it is waited for."""

    work: Callable[[], None]
    looks: int

    def done(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def result(self) -> float:
        self.work()
        return 0.001


@dataclass
class DelayedCopy(DelayedTransfer):
    """One of the device: steps that follow it find the blocks, although `looks` polls do not."""

    near: int  # how many looks before its end a step can follow
    queue: Callable[[Callable[[], None]], None]  # the device's, with the steps
    followed: bool = False

    def follow(self) -> bool:
        if not self.followed and self.looks <= self.near:
            self.followed = True
            self.queue(self.work)
        return self.followed

    def result(self) -> float:
        return 0.001 if self.followed else super().result()


class ByteTier(Tier):
    name = "bytes"

    def __init__(
        self, size: int = 100, looks: int = 0, fails: Callable[[], str] = lambda: "", near: int | None = None
    ) -> None:
        """`fails` is called for each store and load. It returns "begin" or "end" to fail there, or "" to
        succeed. `near`: how many looks before the end of a load a step can follow it.
        """
        self._size, self.cost = size, MeasuredCost()
        self.looks, self._fails, self.near = looks, fails, near
        self.queue: Callable[[Callable[[], None]], None] = lambda work: work()
        self._kept: dict[BlockName, np.ndarray] = {}
        self._coming: set[BlockName] = set()  # of stores in flight
        self.moved: list[tuple[str, int]] = []  # the kind of each finished transfer, and its number of blocks

    @property
    def size(self) -> int:
        return self._size

    @property
    def names(self) -> Sequence[BlockName]:
        """The names of its blocks."""
        return list(self._kept)

    def room(self) -> int:
        return self.size - len(self._kept) - len(self._coming)

    def holds(self, names: Sequence[BlockName]) -> int:
        return front(names, self._kept.__contains__)

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        if len(names) > self.room():
            raise MemoryError("full")

        def work() -> None:
            self._kept.update(zip(names, blocks.read()(), strict=True))

        transfer = self._transfer("store", work, names)
        self._coming.update(names)
        return transfer

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        data = np.stack([self._kept[name] for name in names])
        blocks.write(np.full_like(data, 255))  # -1 in each cell, so a reader that is too early finds it empty
        return self._transfer("load", lambda: blocks.write(data), names)

    def _transfer(self, kind: str, work: Callable[[], None], names: Sequence[BlockName]) -> Transfer:
        failure = self._fails()
        if failure == "begin":
            raise OSError("simulated failure at once")

        def moved() -> None:
            self._coming.difference_update(names)
            if failure == "end":
                raise OSError("simulated failure late")
            work()
            self.moved.append((kind, len(names)))

        if kind == "store" or self.near is None or failure:
            return DelayedTransfer(moved, self.looks)
        return DelayedCopy(moved, self.looks, self.near, self.queue)

    def release(self, names: Sequence[BlockName]) -> None:
        for name in names:
            self._kept.pop(name, None)

    def forget(self, names: Sequence[BlockName]) -> None:
        self.release(names)

    def reset(self) -> None:
        self._kept.clear()
        self._coming.clear()


@contextmanager
def closed(engine: Engine) -> Iterator[None]:
    """Keep preempted requests from resuming inside the block."""
    with patch.object(engine.scheduler.waiting, "head", return_value=None):
        yield
