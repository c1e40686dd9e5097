"""A tier whose store other ranks use, too. Each rank keeps its share of a block under a name of its own."""

from collections.abc import Sequence

from engine.kv.tiers.disk_index import share_of
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer


class SharedTier(Tier):
    """The tier of a rank above 0. Rank 0 uses the scheduler's names, and alone answers its questions."""

    def __init__(self, tier: Tier, rank: int) -> None:
        self._tier, self._rank = tier, rank
        self.name, self.cost, self.persistent = tier.name, tier.cost, tier.persistent

    @property
    def size(self) -> int:
        return self._tier.size

    def room(self) -> int:
        return self._tier.room()

    def holds(self, names: Sequence[BlockName]) -> int:
        return self._tier.holds(self._mine(names))

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        if len(names) > (room := self.room()):
            raise MemoryError(self._tier.problem or f"there is room for {room} of {len(names)} blocks")
        return self._tier.store(self._mine(names), blocks)

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        return self._tier.load(self._mine(names), blocks)

    def own(self, names: Sequence[BlockName], owner: str) -> None:
        self._tier.own(self._mine(names), owner)

    def release(self, names: Sequence[BlockName]) -> None:
        self._tier.release(self._mine(names))

    def forget(self, names: Sequence[BlockName]) -> None:
        self._tier.forget(self._mine(names))

    def reset(self) -> None:
        self._tier.reset()

    def close(self) -> None:
        self._tier.close()

    def _mine(self, names: Sequence[BlockName]) -> tuple[BlockName, ...]:
        return tuple(name + share_of(self._rank) for name in names)
