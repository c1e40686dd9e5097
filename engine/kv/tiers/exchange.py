"""Memory that engines of one machine share: blocks travel through it, by name, from one engine to another.

Each sender owns a segment, a ring in which new blocks replace the oldest, and writes nowhere else. The others
look up names in its table, copy, and check afterwards that nothing was replaced meanwhile. So there is no
lock, and an engine that is killed at any moment leaves nothing that others would wait for. The tables are in
host memory. So are the blocks, or in the memory of their sender's GPU if all others can open that.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.api.events import log
from engine.api.snapshot import EXCHANGE, GPU, HOST
from engine.kv.tiers.cost import MeasuredCost
from engine.kv.tiers.segment import PAGE, BlockFormat, BlockPlace, Peers, Segment
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer, front


@dataclass(slots=True, eq=False)
class _Writing:
    numbers: range
    names: tuple[BlockName, ...]
    ended: bool = False


class ExchangeTier(Tier):
    """Stores into its own segment, if it has one, and loads from all. It keeps nothing for its own engine."""

    name = EXCHANGE
    persistent = transit = True

    def __init__(
        self,
        memory: np.ndarray,
        segments: int,
        own: int | None,
        form: BlockFormat,
        ready: Callable[[], bool] = lambda: True,
        peers: Peers | None = None,
    ) -> None:
        """`memory`: bytes. `own`: the segment to store into. `ready`: whether blocks in host memory can be
        copied yet. `peers`: opens memory of other devices.
        """
        self.cost = MeasuredCost()
        self._form, self._ready = form, ready
        self._lent = None if peers is None or own is None else peers.lent
        each = len(memory) // segments // PAGE * PAGE
        self._segments = [
            Segment(memory[at * each : (at + 1) * each], ready, peers) for at in range(segments)
        ]
        self._own = None if own is None else self._segments[own]
        self.reset()

    @property
    def size(self) -> int:
        return sum(each.size for each in self._segments)

    @property
    def used(self) -> int:
        return sum(each.used for each in self._segments)

    @property
    def way(self) -> str:
        """How blocks leave this engine."""
        return HOST if self._lent is None else GPU

    def room(self) -> int:
        """Half of the segment, so that what is being written is never replaced."""
        if self._own is None or (self._lent is None and not self._ready()):
            return 0
        return self._own.size // 2 - sum(len(each.numbers) for each in self._writing)

    def holds(self, names: Sequence[BlockName]) -> int:
        self._look()
        return front(names, lambda name: (place := self._places.get(name)) is not None and place.lasting)

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        if self._own is None or len(names) > self.room():
            raise MemoryError(f"there is room for {self.room()} of {len(names)} blocks")
        segment, slab = self._own, self._own.slab
        writing = _Writing(segment.claim(len(names)), tuple(names))
        self._writing.append(writing)
        slots = [number % segment.size for number in writing.numbers]
        pairs = list(zip(blocks.numbers, slots, strict=True))
        try:
            moving = blocks.move(lambda: self._form.copy_out(slab, pairs))
        except BaseException:
            self._written(writing, whole=False)
            raise
        return _Then(moving, partial(self._written, writing))

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        found = [self._places.get(name) for name in names]
        places = [place for place in found if place is not None and place.segment.size]
        if len(places) < len(names):
            raise OSError(f"{len(names) - len(places)} of {len(names)} blocks are gone")
        parts: dict[Segment, list[tuple[int, int]]] = {}
        for place, block in zip(places, blocks.numbers, strict=True):
            slot = place.number % place.segment.size
            parts.setdefault(place.segment, []).append((slot, block))
        moves = [(segment.slab, pairs) for segment, pairs in parts.items()]

        def copy() -> None:
            for slab, pairs in moves:
                self._form.copy_in(slab, pairs)

        return _Then(blocks.move(copy), partial(_check, places))

    def release(self, names: Sequence[BlockName]) -> None:
        return  # the ring replaces them

    def forget(self, names: Sequence[BlockName]) -> None:
        self._look()
        for name in names:
            place = self._places.pop(name, None)
            if place is not None and place.segment is self._own and place.whole:
                self._own.numbers[place.number % self._own.size] = 0

    def reset(self) -> None:
        self._places: dict[BlockName, BlockPlace] = {}
        self._writing: deque[_Writing] = deque()
        for each in self._segments:
            each.generation = each.seen = each.size = 0
        if self._own is not None:
            self._own.begin(self._form, self._lent)

    def close(self) -> None:
        if self._own is not None:
            self._own.end()
        for each in self._segments:
            if each is not self._own:
                each.drop()

    def _look(self) -> None:
        """Notice what all senders have published, and whether others cannot open this device's memory."""
        if self._own is not None and self._lent is not None and self._own.refused:
            log.warning("blocks are sent through host memory: another engine cannot open this GPU's memory")
            self._lent = None
            self.reset()
        for each in self._segments:
            self._places.update(each.news(self._form))
        if len(self._places) > 2 * self.size:
            self._places = {name: place for name, place in self._places.items() if place.whole}

    def _written(self, writing: _Writing, *, whole: bool) -> None:
        """Publish what was written, in the order of the slots."""
        assert self._own is not None
        writing.ended = True
        if not whole:
            writing.names = ()
        while self._writing and self._writing[0].ended:
            first = self._writing.popleft()
            self._own.publish(first.numbers, first.names)


class _Then(Transfer):
    """A transfer, and what follows its end on the engine's thread."""

    def __init__(self, moving: Transfer, after: Callable[..., None]) -> None:
        self._moving, self._after = moving, after

    def done(self) -> bool:
        return self._moving.done()

    def result(self) -> float:
        try:
            seconds = self._moving.result()
        except BaseException:
            self._after(whole=False)
            raise
        self._after(whole=True)
        return seconds


def _check(places: Sequence[BlockPlace], *, whole: bool) -> None:
    """Raise if a block was replaced while it was copied, or if its memory may have been."""
    if not whole:
        return
    for segment in {place.segment for place in places}:
        if not segment.lent:
            segment.drop()
    if lost := sum(not place.whole for place in places):
        raise OSError(f"{lost} of {len(places)} blocks were lost or replaced while they were loaded")
