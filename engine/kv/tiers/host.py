"""Host memory, for blocks of preempted requests and for blocks that the device has no room for."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from engine.kv.host_memory import Pairs
from engine.kv.tiers.cost import MeasuredCost
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer, front

LAST = 128  # blocks of a load that a step may wait for on the device: 5 ms for an 8B model and PCIe gen 5


class SwapSpace(Protocol):
    """Device blocks and host blocks, both by number."""

    @property
    def host_blocks(self) -> int:
        """Host blocks, also those that are still being prepared."""

    def host_ready(self, *, least: int = 0) -> int:
        """How many can be used, from number 0 on. Waits for `least`, unless preparing them has ended."""

    def swap_out(self, pairs: Pairs) -> None:
        """Copy device blocks to host blocks."""

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to device blocks."""

    def close(self) -> None:
        """Stop preparing host blocks."""


class HostTier(Tier):
    """Keeps a block until its release."""

    name = "host"

    def __init__(self, space: SwapSpace) -> None:
        self.cost = MeasuredCost()
        self._space = space
        self.reset()

    @property
    def size(self) -> int:
        return self._space.host_blocks

    @property
    def used(self) -> int:
        return len(self._places)

    def room(self) -> int:
        self._take(self._space.host_ready())
        return len(self._free)

    def holds(self, names: Sequence[BlockName]) -> int:
        return front(names, self._places.__contains__)

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        if len(names) > self.room():  # a replay can be faster than memory is pinned
            self._take(self._space.host_ready(least=self._taken + len(names) - len(self._free)))
        if len(names) > len(self._free):
            raise MemoryError(f"cannot store {len(names)} blocks: host memory has room for {len(self._free)}")
        places = sorted(self._free.pop() for _ in names)
        ordered = sorted(zip(blocks.numbers, names, strict=True))  # neighbors become neighbors
        self._places.update((name, place) for (_, name), place in zip(ordered, places, strict=True))
        pairs = [(block, place) for (block, _), place in zip(ordered, places, strict=True)]
        return blocks.move(lambda: self._space.swap_out(pairs))

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        pairs = sorted((self._places[name], block) for name, block in zip(names, blocks.numbers, strict=True))
        parts = [part for part in (pairs[:-LAST], pairs[-LAST:]) if part]
        return blocks.move(*(partial(self._space.swap_in, part) for part in parts))

    def release(self, names: Sequence[BlockName]) -> None:
        self._free += [self._places.pop(name) for name in names if name in self._places]

    def forget(self, names: Sequence[BlockName]) -> None:
        self.release(names)

    def reset(self) -> None:
        self._places: dict[BlockName, int] = {}
        self._free: list[int] = []
        self._taken = 0  # blocks that were ready so far

    def close(self) -> None:
        self._space.close()

    def _take(self, ready: int) -> None:
        """Use the blocks that have become ready."""
        self._free[:0] = reversed(range(self._taken, ready))
        self._taken = ready
