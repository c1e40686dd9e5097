"""The block pool. Each block is exactly one of free, cached (findable, not held), in use, in transfer."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


class BlockPool:
    """Counts who holds each block and remembers published ones until their room is needed."""

    def __init__(self, size: int, block_size: int) -> None:
        self.block_size = block_size
        self.reset(size)

    def reset(self, size: int) -> None:
        """So many blocks, all free; whoever holds one holds it no longer."""
        self.size = size
        # Columns, so that a snapshot is a few copies.
        self.refs = np.zeros(size, np.int32)
        self.owner = np.full(size, -1, np.int64)  # the request that took it, kept while it is cached
        self.place = np.zeros(size, np.int32)  # which of its owner's blocks it is, from 0
        self.used_at = np.zeros(size, np.int64)  # the clock when it was last given back or shared
        self.left = np.zeros(size, bool)  # nobody's since it left somebody's window
        self.clock = 0  # the step, set by whoever drives
        self.evictions = 0
        self._free: deque[int] = deque(range(size))
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks, the longest unused first
        self._by_key: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken: the free, and the cached that would be evicted."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        return len(self._idle)

    @property
    def in_use(self) -> int:
        return self.size - self.available

    def can_take(self, count: int) -> bool:
        return count <= len(self._free) + len(self._idle)

    def take(self, count: int, owner: int, place: int = 0) -> list[int]:
        """That many blocks for `owner`, its `place`th and on; free ones first, then the longest unused."""
        if not self.can_take(count):
            raise ValueError(f"{count} blocks wanted, {self.available} of {self.size} are free")
        taken = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        for at, block in enumerate(taken, place):
            self.refs[block] = 1
            self.left[block] = False
            self.owner[block] = owner
            self.place[block] = at
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each; a cached block comes back into use."""
        for block in blocks:
            if self.refs[block] == 0:
                del self._idle[block]
                self.left[block] = False
            self.refs[block] += 1
            self.used_at[block] = self.clock

    def give_back(self, blocks: Sequence[int]) -> None:
        """One holder less for each. The end of a chain goes first, so that it is evicted before its root."""
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.used_at[block] = self.clock
                if block in self._key_of:
                    self._idle[block] = None
                else:
                    self.owner[block] = -1
                    self._free.append(block)

    def let_go(self, blocks: Sequence[int]) -> None:
        """The same for blocks that have left a window; what nobody else holds is marked until it is taken."""
        self.give_back(blocks)
        for block in blocks:
            self.left[block] = self.refs[block] == 0

    def is_shared(self, block: int) -> bool:
        return bool(self.refs[block] > 1)

    def publish(self, block: int, key: bytes) -> None:
        """Makes a full block findable. The first block of a key stays; later twins are ordinary blocks."""
        if key not in self._by_key and block not in self._key_of:
            self._by_key[key] = block
            self._key_of[block] = key

    def find(self, key: bytes) -> int | None:
        return self._by_key.get(key)

    def forget(self, blocks: Iterable[int]) -> None:
        """Makes blocks unfindable: what they hold is not to be trusted any more."""
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._by_key[key]
                if self.refs[block] == 0:
                    del self._idle[block]
                    self.owner[block] = -1
                    self._free.append(block)

    def forget_all(self) -> None:
        self.forget(list(self._key_of))

    def grow(self, size: int) -> None:
        """That many blocks, the new ones free."""
        more = size - self.size
        self._free.extend(range(self.size, size))
        self.refs, self.place, self.used_at, self.left = (
            np.concatenate((each, np.zeros(more, each.dtype)))
            for each in (self.refs, self.place, self.used_at, self.left)
        )
        self.owner = np.concatenate((self.owner, np.full(more, -1, self.owner.dtype)))
        self.size = size

    def shrink(self, size: int) -> dict[int, int]:
        """Only the first `size` blocks stay. Gives where those in use beyond have moved: from, to.

        Cached blocks beyond are evicted, and others where room is needed. All in use must fit.
        """
        if self.in_use > size:
            raise ValueError(f"{self.in_use} blocks are in use, and {size} would be left")
        beyond = [block for block in self._idle if block >= size]
        self.evictions += len(beyond)
        self.forget(beyond)
        self._free = deque(block for block in self._free if block < size)
        moved = {}
        for block in (np.flatnonzero(self.refs[size:]) + size).tolist():
            to = moved[block] = self._free.popleft() if self._free else self._evict()
            for column in (self.refs, self.owner, self.place, self.used_at, self.left):
                column[to] = column[block]
            if (key := self._key_of.pop(block, None)) is not None:
                self._key_of[to], self._by_key[key] = key, to
        self.refs, self.owner = self.refs[:size].copy(), self.owner[:size].copy()
        self.place, self.used_at = self.place[:size].copy(), self.used_at[:size].copy()
        self.left = self.left[:size].copy()
        self.size = size
        return moved

    @property
    def held(self) -> list[int]:
        """The blocks that hold anything: in use, or cached."""
        return [*np.flatnonzero(self.refs).tolist(), *self._idle]

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        del self._by_key[self._key_of.pop(block)]
        self.evictions += 1
        return block

    def check(self, tables: Mapping[int, Sequence[int]], moving: Iterable[Sequence[int]] = ()) -> None:
        """Proves the invariants against the tables of all requests, and the blocks that each transfer holds.

        Raises AssertionError with the block.
        """
        held = np.zeros(self.size, np.int32)
        for owner, blocks in tables.items():
            # Others have left its window.
            there = {at: block for at, block in enumerate(blocks) if block >= 0}
            own = list(there.values())
            assert len(set(own)) == len(own), f"request {owner} holds a block twice: {blocks}"
            np.add.at(held, own, 1)
            places = self.place[own].tolist()
            assert places == list(there), f"request {owner}: blocks {blocks} say places {places}"
        transfer: set[int] = set()
        for blocks in moving:
            np.add.at(held, list(blocks), 1)
            transfer.update(blocks)
        wrong = np.flatnonzero(held != self.refs)
        assert not wrong.size, (
            f"block {wrong[0]}: {held[wrong[0]]} tables hold it, {self.refs[wrong[0]]} counted"
        )
        free, idle = set(self._free), set(self._idle)
        used = set(np.flatnonzero(self.refs).tolist()) - transfer
        assert len(free) == len(self._free), "a block is free twice"
        states = (free, idle, used, transfer)
        assert len(set().union(*states)) == sum(map(len, states)), "a block is two things at once"
        assert sum(map(len, states)) == self.size, "a block is lost"
        assert not used & set(np.flatnonzero(self.left).tolist()), "a block in use counts as out of a window"
        assert self._by_key == {key: block for block, key in self._key_of.items()}, "keys and blocks disagree"
        assert idle <= set(self._key_of), "a cached block cannot be found"
        assert not free & set(self._key_of), "a free block can be found"
