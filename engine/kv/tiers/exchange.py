"""Memory that engines of one machine share: blocks travel through it, by name, from one engine to another.

Each sender owns a segment, a ring in which new blocks replace the oldest, and writes nowhere else. The others
look up names in its table, copy, and check afterwards that nothing was replaced meanwhile. So there is no
lock, and an engine that is killed at any moment leaves nothing that others would wait for.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from engine.api.snapshot import EXCHANGE
from engine.kv.host_memory import Pairs
from engine.kv.tiers.cost import MeasuredCost
from engine.kv.tiers.tier import BlockName, DeviceBlocks, Tier, Transfer, front

_PAGE = 4096
_NAME = 32  # bytes
_ENTRY = _NAME + 8  # bytes of a slot in the table: its name, and its number
_GENERATION, _STRIDE, _HEAD, _DONE = range(4)  # places in the header


class BlockFormat(Protocol):
    """The device's cache, and slabs of other memory whose blocks have the same form."""

    @property
    def block_nbytes(self) -> int: ...

    def slab_over(self, memory: np.ndarray, blocks: int) -> Any: ...

    def copy_out(self, slab: Any, pairs: Pairs) -> None:
        """Copy device blocks to blocks of the slab."""

    def copy_in(self, slab: Any, pairs: Pairs) -> None:
        """Copy blocks of the slab to device blocks."""


class _Place(NamedTuple):
    """Where a block is: the `number`-th that its segment has taken in."""

    segment: "_Segment"
    generation: int
    number: int

    @property
    def whole(self) -> bool:
        """Whether the block is still there."""
        segment, number = self.segment, self.number
        current = segment.header[_GENERATION] == self.generation == segment.generation
        return bool(current and segment.numbers[number % segment.size] == number + 1)

    @property
    def lasting(self) -> bool:
        """Whether it is, and will not be replaced soon."""
        segment = self.segment
        return int(segment.header[_HEAD]) - self.number <= 3 * segment.size // 4 and self.whole


class _Segment:
    """A header, a table of slots, and the blocks. Its owner begins a new generation with each cache."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.header = memory[:_PAGE].view(np.int64)
        self.generation = self.seen = self.size = 0

    def lay_out(self, form: BlockFormat) -> None:
        stride = form.block_nbytes
        self.size = size = max(0, len(self._memory) - 3 * _PAGE) // (stride + _ENTRY)
        numbers = _PAGE + size * _NAME
        blocks = -(-(numbers + size * 8) // _PAGE) * _PAGE
        self.names = self._memory[_PAGE:numbers].reshape(size, _NAME)
        self.numbers = self._memory[numbers : numbers + size * 8].view(np.int64)
        self.slab = form.slab_over(self._memory[blocks : blocks + size * stride], size)

    # The owner's side

    def begin(self, form: BlockFormat) -> None:
        self.header[_GENERATION] = 0
        self.lay_out(form)
        self.numbers[:] = 0
        self.header[_HEAD] = self.header[_DONE] = 0
        self.header[_STRIDE] = form.block_nbytes
        self.generation, self.seen = time.time_ns(), 0
        self.header[_GENERATION] = self.generation

    def claim(self, count: int) -> range:
        """Take the next slots. What was in them is no longer found."""
        first = int(self.header[_HEAD])
        numbers = range(first, first + count)
        self.numbers[[number % self.size for number in numbers]] = 0
        self.header[_HEAD] = numbers.stop
        return numbers

    def publish(self, numbers: range, names: Sequence[BlockName]) -> None:
        """Make blocks findable. `names`: none if they were not written."""
        for number, name in zip(numbers, names, strict=False):
            slot = number % self.size
            self.names[slot] = np.frombuffer(name, np.uint8)
            self.numbers[slot] = number + 1
        self.header[_DONE] = numbers.stop

    # The side of all others

    def news(self, form: BlockFormat) -> Iterator[tuple[BlockName, _Place]]:
        """What was published since the last call."""
        generation = int(self.header[_GENERATION])
        if generation == 0:
            return
        if generation != self.generation:
            if self.header[_STRIDE] != form.block_nbytes:  # a cache in another scheme
                return
            self.lay_out(form)
            self.generation, self.seen = generation, 0
        done = int(self.header[_DONE])
        for number in range(max(self.seen, done - self.size), done):
            place = _Place(self, generation, number)
            name = self.names[number % self.size].tobytes()
            if place.whole:
                yield name, place
        self.seen = done


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
    ) -> None:
        """`memory`: bytes. `own`: the segment to store into. `ready`: whether the memory can be used yet."""
        self.cost = MeasuredCost()
        self._form, self._ready = form, ready
        each = len(memory) // segments // _PAGE * _PAGE
        self._segments = [_Segment(memory[at * each : (at + 1) * each]) for at in range(segments)]
        self._own = None if own is None else self._segments[own]
        self.reset()

    @property
    def size(self) -> int:
        return sum(each.size for each in self._segments)

    @property
    def used(self) -> int:
        return sum(min(each.size, int(each.header[_DONE])) for each in self._segments)

    def room(self) -> int:
        """Half of the segment, so that what is being written is never replaced."""
        if self._own is None or not self._ready():
            return 0
        return self._own.size // 2 - sum(len(each.numbers) for each in self._writing)

    def holds(self, names: Sequence[BlockName]) -> int:
        if not self._ready():
            return 0
        self._look()
        return front(names, lambda name: (place := self._places.get(name)) is not None and place.lasting)

    def store(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        if self._own is None or len(names) > self.room():
            raise MemoryError(f"there is room for {self.room()} of {len(names)} blocks")
        segment = self._own
        writing = _Writing(segment.claim(len(names)), tuple(names))
        self._writing.append(writing)
        slots = [number % segment.size for number in writing.numbers]
        pairs = list(zip(blocks.numbers, slots, strict=True))
        try:
            moving = blocks.move(lambda: self._form.copy_out(segment.slab, pairs))
        except BaseException:
            self._written(writing, whole=False)
            raise
        return _Then(moving, partial(self._written, writing))

    def load(self, names: Sequence[BlockName], blocks: DeviceBlocks) -> Transfer:
        places = [place for name in names if (place := self._places.get(name)) is not None]
        if len(places) < len(names):
            raise OSError(f"{len(names) - len(places)} of {len(names)} blocks are gone")
        parts: dict[int, list[tuple[int, int]]] = {}
        for place, block in zip(places, blocks.numbers, strict=True):
            at, slot = self._segments.index(place.segment), place.number % place.segment.size
            parts.setdefault(at, []).append((slot, block))

        def copy() -> None:
            for at, pairs in parts.items():
                self._form.copy_in(self._segments[at].slab, pairs)

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
        self._places: dict[BlockName, _Place] = {}
        self._writing: deque[_Writing] = deque()
        for each in self._segments:
            each.generation = each.seen = each.size = 0
        if self._own is not None:
            self._own.begin(self._form)

    def _look(self) -> None:
        """Notice what all senders have published."""
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


def _check(places: Sequence[_Place], *, whole: bool) -> None:
    """Raise if a block was replaced while it was copied."""
    lost = sum(not place.whole for place in places)
    if whole and lost:
        raise OSError(f"{lost} of {len(places)} blocks were replaced while they were loaded")
