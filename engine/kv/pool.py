"""The block pool. Each block is in one state: free, cached (findable, not held), in use, or in transfer."""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

NO_REQUEST = -1  # instead of a request id, for evictions because the pool shrinks
_COLUMNS = ("refs", "owner", "place", "used_at", "dropped", "moved")  # of numbers by block


class BlockPool:
    """Counts the holders of each block and keeps published blocks until their space is needed."""

    def __init__(self, size: int, block_size: int) -> None:
        self.block_size = block_size
        self.journal: dict[bytes, bool] | None = None  # changed keys, and whether they are findable now
        self._key_of: dict[int, bytes] = {}
        self.reset(size)

    def reset(self, size: int) -> None:
        """Reset to `size` free blocks without holders."""
        self.size = size
        # Columns, so that a snapshot takes a few array copies.
        self.refs = np.zeros(size, np.int32)
        self.owner = np.full(size, -1, np.int64)  # the request that took it; kept while the block is cached
        self.place = np.zeros(size, np.int32)  # its index in its owner's blocks
        self.used_at = np.zeros(size, np.int64)  # the clock when it was last freed or shared
        self.dropped = np.zeros(size, bool)  # its request dropped it, and nothing has held it since
        self.moved = np.zeros(size, np.int8)  # its last copy to or from a tier, until it is taken; 0: none
        self.clock = 0  # the current step, set by the scheduler
        self.evictions = 0
        self.unreported = Counter[int]()  # by the request that took the space
        self._free: deque[int] = deque(range(size))
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached blocks, least recently used first
        self._copied: OrderedDict[int, None] = OrderedDict()  # the same, with a copy in a lower tier
        self._note(self._key_of.values(), findable=False)
        self._by_key: dict[bytes, int] = {}
        self._key_of = {}

    @property
    def keys(self) -> Collection[bytes]:
        """The keys of all findable blocks."""
        return self._by_key.keys()

    def _note(self, keys: Iterable[bytes], *, findable: bool) -> None:
        if self.journal is not None:
            self.journal.update(dict.fromkeys(keys, findable))

    @property
    def available(self) -> int:
        """Blocks that can be allocated: free ones, and cached ones that can be evicted."""
        return len(self._free) + self.cached

    @property
    def cached(self) -> int:
        return len(self._idle) + len(self._copied)

    @property
    def in_use(self) -> int:
        return self.size - self.available

    def can_allocate(self, count: int) -> bool:
        return count <= self.available

    def allocate(self, count: int, owner: int, place: int = 0) -> list[int]:
        """Give `count` blocks to `owner`, at its indices from `place` on: free ones first, then LRU."""
        if not self.can_allocate(count):
            raise ValueError(f"cannot allocate {count} blocks: {self.available} of {self.size} are available")
        # In order, so that neighbors can be copied together.
        taken = sorted(self._free.popleft() if self._free else self._evict(owner) for _ in range(count))
        for at, block in enumerate(taken, place):
            self.refs[block] = 1
            self.dropped[block] = False
            self.moved[block] = 0
            self.owner[block] = owner
            self.place[block] = at
        return taken

    def allocate_at(self, places: Sequence[int], owner: int) -> list[int]:
        """Give a block to `owner` at each of these indices."""
        taken = self.allocate(len(places), owner)
        self.place[taken] = places
        return taken

    def share(self, blocks: Iterable[int], owner: int | None = None) -> None:
        """Add a holder to each block. A cached block is in use again, and `owner` has taken it."""
        for block in blocks:
            if self.refs[block] == 0:
                self._take_idle(block)
                self.owner[block] = self.owner[block] if owner is None else owner
            self.dropped[block] = False  # also if a transfer alone held it
            self.refs[block] += 1
            self.used_at[block] = self.clock

    def free(self, blocks: Sequence[int]) -> None:
        """Remove a holder from each block, the end of a chain first, so it is evicted before the root."""
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.used_at[block] = self.clock
                if block in self._key_of:
                    self._idle[block] = None
                else:
                    self.owner[block] = -1
                    self._free.append(block)

    @property
    def ready(self) -> int:
        """Blocks whose allocation loses nothing: free ones, and those with a copy in a lower tier."""
        return len(self._free) + len(self._copied)

    def oldest(self, count: int) -> list[tuple[int, bytes]]:
        """The `count` blocks without a copy that are evicted first, with their keys."""
        return [(block, self._key_of[block]) for block in islice(self._idle, count)]

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to cached blocks while they are copied. It does not count as a use."""
        for block in blocks:
            del self._idle[block]
            self.refs[block] += 1

    def put_back(self, blocks: Sequence[int], *, copied: bool) -> None:
        """Undo `hold`. Blocks that nothing used since are evicted in their old order."""
        for block in blocks if copied else reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0 and block not in self._key_of:
                self.owner[block] = -1
                self._free.append(block)
            elif self.refs[block] == 0 and copied:
                self._copied[block] = None
            elif self.refs[block] == 0:
                self._idle[block] = None
                self._idle.move_to_end(block, last=False)

    def mark_copied(self, blocks: Iterable[int]) -> None:
        """Note that cached blocks have a copy in a lower tier."""
        for block in blocks:
            del self._idle[block]
            self._copied[block] = None

    def drop(self, blocks: Sequence[int]) -> None:
        """Release blocks that a running request no longer reads. Those without other holders are marked."""
        self.free(blocks)
        for block in blocks:
            self.dropped[block] = self.refs[block] == 0

    def is_shared(self, block: int) -> bool:
        return bool(self.refs[block] > 1)

    def publish(self, block: int, key: bytes) -> None:
        """Make a full block findable. If the key has a block already, this one stays unpublished."""
        if key not in self._by_key and block not in self._key_of:
            self._by_key[key] = block
            self._key_of[block] = key
            self._note([key], findable=True)

    def find(self, key: bytes) -> int | None:
        return self._by_key.get(key)

    def forget(self, blocks: Iterable[int]) -> None:
        """Make blocks unfindable, because their contents may be wrong."""
        for block in blocks:
            key = self._key_of.pop(block, None)
            if key is not None:
                del self._by_key[key]
                self._note([key], findable=False)
                if self.refs[block] == 0:
                    self._take_idle(block)
                    self.owner[block] = -1
                    self._free.append(block)

    def forget_all(self) -> None:
        self.forget(list(self._key_of))

    def grow(self, size: int) -> None:
        """Grow to `size` blocks; the new ones are free."""
        more = size - self.size
        self._free.extend(range(self.size, size))
        for name in _COLUMNS:
            column = getattr(self, name)
            fresh = np.full(more, -1 if name == "owner" else 0, column.dtype)
            setattr(self, name, np.concatenate((column, fresh)))
        self.size = size

    def shrink(self, size: int) -> dict[int, int]:
        """Keep only the first `size` blocks. Returns where blocks in use beyond them moved: {from: to}.

        Cached blocks beyond `size` are evicted, and others if their space is needed. All in use must fit.
        """
        if self.in_use > size:
            raise ValueError(f"cannot shrink to {size} blocks: {self.in_use} are in use")
        beyond = [block for block in (*self._copied, *self._idle) if block >= size]
        self._count_evictions(len(beyond), NO_REQUEST)
        self.forget(beyond)
        self._free = deque(block for block in self._free if block < size)
        moved = {}
        for block in (np.flatnonzero(self.refs[size:]) + size).tolist():
            to = moved[block] = self._free.popleft() if self._free else self._evict(NO_REQUEST)
            for name in _COLUMNS:
                column = getattr(self, name)
                column[to] = column[block]
            if (key := self._key_of.pop(block, None)) is not None:
                self._key_of[to], self._by_key[key] = key, to
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[:size].copy())
        self.size = size
        return moved

    @property
    def held(self) -> list[int]:
        """The blocks with contents: in use or cached."""
        return [*np.flatnonzero(self.refs).tolist(), *self._copied, *self._idle]

    def _evict(self, owner: int) -> int:
        block, _ = (self._copied or self._idle).popitem(last=False)
        key = self._key_of.pop(block)
        del self._by_key[key]
        self._note([key], findable=False)
        self._count_evictions(1, owner)
        return block

    def _count_evictions(self, count: int, owner: int) -> None:
        self.evictions += count
        self.unreported[owner] += count

    def _take_idle(self, block: int) -> None:
        del (self._copied if block in self._copied else self._idle)[block]

    def check(self, tables: Mapping[int, Sequence[int]], moving: Iterable[Sequence[int]] = ()) -> None:
        """Check the invariants against all requests' tables and the blocks each transfer holds.

        Raises AssertionError naming the block.
        """
        held = np.zeros(self.size, np.int32)
        for owner, blocks in tables.items():
            # Negative entries have left the request's window, or were evicted.
            there = {at: block for at, block in enumerate(blocks) if block >= 0}
            own = list(there.values())
            assert len(set(own)) == len(own), f"request {owner} holds a block twice: {blocks}"
            np.add.at(held, own, 1)
            places = self.place[own].tolist()
            assert places == list(there), f"request {owner}: blocks {blocks} have indices {places}"
        transfer: set[int] = set()
        for blocks in moving:
            np.add.at(held, list(blocks), 1)
            transfer.update(blocks)
        wrong = np.flatnonzero(held != self.refs)
        assert not wrong.size, f"block {wrong[0]}: {held[wrong[0]]} holders, {self.refs[wrong[0]]} counted"
        free, idle = set(self._free), self._idle.keys() | self._copied.keys()
        used = set(np.flatnonzero(self.refs).tolist()) - transfer
        assert len(free) == len(self._free), "a block is free twice"
        assert self._idle.keys().isdisjoint(self._copied), "a cached block is counted twice"
        states = (free, idle, used, transfer)
        assert len(set().union(*states)) == sum(map(len, states)), "a block is in two states"
        assert sum(map(len, states)) == self.size, "a block is lost"
        assert not used & set(np.flatnonzero(self.dropped).tolist()), "a block in use is marked as dropped"
        assert self._by_key == {key: block for block, key in self._key_of.items()}, "keys and blocks disagree"
        assert idle <= set(self._key_of), "a cached block has no key"
        assert not free & set(self._key_of), "a free block has a key"
