"""Host memory, for blocks of preempted requests and for blocks that the device has no room for."""

from collections.abc import Sequence
from typing import Protocol

from engine.kv.tiers.cost import MeasuredCost
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer, front

Pairs = Sequence[tuple[int, int]]  # (from block, to block)


class SwapSpace(Protocol):
    """Device blocks and host blocks, both by number."""

    @property
    def host_blocks(self) -> int: ...

    def swap_out(self, pairs: Pairs) -> None:
        """Copy device blocks to host blocks."""

    def swap_in(self, pairs: Pairs) -> None:
        """Copy host blocks to device blocks."""


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

    def room(self) -> int:
        return len(self._free)

    def holds(self, names: Sequence[BlockName]) -> int:
        return front(names, self._places.__contains__)

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        if len(names) > len(self._free):
            raise MemoryError(f"cannot store {len(names)} blocks: host memory has room for {len(self._free)}")
        places = [self._free.pop() for _ in names]
        self._places.update(zip(names, places, strict=True))
        pairs = list(zip(blocks.numbers, places, strict=True))
        return blocks.move(lambda: self._space.swap_out(pairs))

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        pairs = [(self._places[name], block) for name, block in zip(names, blocks.numbers, strict=True)]
        return blocks.move(lambda: self._space.swap_in(pairs))

    def release(self, names: Sequence[BlockName]) -> None:
        self._free += [self._places.pop(name) for name in names if name in self._places]

    def forget(self, names: Sequence[BlockName]) -> None:
        self.release(names)

    def reset(self) -> None:
        self._places: dict[BlockName, int] = {}
        self._free = list(reversed(range(self.size)))
