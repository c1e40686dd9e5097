"""A sender's part of the memory that engines share: a table of its blocks, and where they are.

The blocks follow the table in host memory, or are in the memory of the sender's GPU. Its handle is in the
header then. A reader that cannot open it refuses the generation, also in the header, and the sender begins
another one in host memory. The header also says which process lends the memory: what was copied from there
counts only if that process was alive after the copy.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from engine.api.errors import EngineError
from engine.api.events import log
from engine.kv.host_memory import Pairs
from engine.kv.tiers.lender import Lender
from engine.kv.tiers.tier import BlockName

PAGE = 4096
_NAME = 32  # bytes
_ENTRY = _NAME + 8  # bytes of a slot in the table: its name, and its number
# Places in the header. Readers write only _REFUSED.
_GENERATION, _STRIDE, _HEAD, _DONE, _LENT, _REFUSED, _PID, _BEGAN = range(8)
HANDLE = 64  # bytes of a handle
_HANDLE = slice(PAGE - HANDLE, PAGE)


class BlockFormat(Protocol):
    """The device's cache, and slabs of other memory whose blocks have the same form."""

    @property
    def block_nbytes(self) -> int: ...

    def slab_over(self, memory: Any, blocks: int) -> Any:
        """`memory`: bytes of the host, or of a device."""

    def copy_out(self, slab: Any, pairs: Pairs) -> None:
        """Copy device blocks to blocks of the slab."""

    def copy_in(self, slab: Any, pairs: Pairs) -> None:
        """Copy blocks of the slab to device blocks."""


class Lent(NamedTuple):
    """Memory of an engine's device that other engines may open."""

    memory: Any  # bytes, as the engine itself sees them
    nbytes: int
    handle: bytes
    lender: Lender


class Peers(Protocol):
    """What engines lend each other of their devices."""

    lent: Lent | None  # of this engine's own; None: its blocks go through host memory

    def opened(self, handle: bytes, nbytes: int, lender: Lender) -> Any:
        """Another engine's memory, as bytes; None while it is being opened. Raises if that fails."""


class BlockPlace(NamedTuple):
    """Where a block is: the `number`-th that its segment has taken in."""

    segment: "Segment"
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


class Segment:
    """A header, a table of slots, and the blocks. Its owner begins a new generation with each cache."""

    def __init__(self, memory: np.ndarray, ready: Callable[[], bool], peers: Peers | None) -> None:
        """`ready`: whether blocks in host memory can be copied yet."""
        self._memory, self._ready, self._peers = memory, ready, peers
        self.header = memory[:PAGE].view(np.int64)
        self.drop()

    def drop(self) -> None:
        """Forget the generation. A device's memory is given back once no copy uses it."""
        self.generation = self.seen = self.size = 0
        self.slab: Any = None
        self._lender: Lender | None = None  # None: the blocks are in host memory
        self._opened: tuple[tuple[bytes, Lender | None], Any] = (b"", None), None

    @property
    def used(self) -> int:
        return min(self.size, int(self.header[_DONE]))

    @property
    def lent(self) -> bool:
        """Whether the blocks' memory still belongs to the process that lent it."""
        return self._lender is None or self._lender.alive

    def _lay_out(self, form: BlockFormat, device: Any, nbytes: int) -> None:
        """`device`: the memory of the blocks; None: they follow the table."""
        stride = form.block_nbytes
        size = max(0, len(self._memory) - 3 * PAGE) // (stride + _ENTRY)
        self.size = size = size if device is None else min(size, nbytes // stride)
        numbers = PAGE + size * _NAME
        blocks = -(-(numbers + size * 8) // PAGE) * PAGE
        self.names = self._memory[PAGE:numbers].reshape(size, _NAME)
        self.numbers = self._memory[numbers : numbers + size * 8].view(np.int64)
        memory = self._memory[blocks:] if device is None else device
        self.slab = form.slab_over(memory[: size * stride], size)

    # The owner's side

    def begin(self, form: BlockFormat, lent: Lent | None) -> None:
        device, nbytes, handle, lender = lent or (None, 0, bytes(HANDLE), None)
        self.header[_GENERATION] = 0
        self._lay_out(form, device, nbytes)
        self.numbers[:] = 0
        self.header[_HEAD] = self.header[_DONE] = 0
        self.header[_STRIDE], self.header[_LENT] = form.block_nbytes, nbytes
        self.header[_PID], self.header[_BEGAN] = lender or (0, 0)
        self._lender = lender
        self._memory[_HANDLE] = np.frombuffer(handle, np.uint8)
        self.generation, self.seen = time.time_ns(), 0
        self.header[_GENERATION] = self.generation

    def end(self) -> None:
        """Nothing is found here any more."""
        self.header[_GENERATION] = 0

    @property
    def refused(self) -> bool:
        """Whether another engine cannot open the device's memory."""
        return bool(self.header[_REFUSED] == self.generation)

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

    def news(self, form: BlockFormat) -> Iterator[tuple[BlockName, BlockPlace]]:
        """What was published since the last call."""
        generation = int(self.header[_GENERATION])
        if generation == 0:
            self.drop()
            return
        if generation != self.generation and not self._follow(generation, form):
            return
        done = int(self.header[_DONE])
        for number in range(max(self.seen, done - self.size), done):
            place = BlockPlace(self, generation, number)
            name = self.names[number % self.size].tobytes()
            if place.whole:
                yield name, place
        self.seen = done

    def _follow(self, generation: int, form: BlockFormat) -> bool:
        """Adopt the owner's new generation. False: not yet, or it cannot be read."""
        header, handle = self.header, self._memory[_HANDLE].tobytes()
        nbytes, stride, refused = (int(header[at]) for at in (_LENT, _STRIDE, _REFUSED))
        lender = Lender(int(header[_PID]), int(header[_BEGAN])) if nbytes else None
        if header[_GENERATION] != generation or stride != form.block_nbytes:  # a cache in another scheme
            return False
        if lender is not None and not lender.alive:
            return False
        key = handle, lender  # another process may have the same handle for other memory
        if lender is None:
            if not self._ready():
                return False
            self._opened = key, None
        elif refused == generation:
            return False
        elif key != self._opened[0]:
            try:
                device = self._open(handle, nbytes, lender)
            except (OSError, RuntimeError, EngineError) as error:
                log.warning("the GPU memory of an engine that sends blocks cannot be opened: %s", error)
                header[_REFUSED] = generation
                return False
            if device is None:
                return False
            self._opened = key, device
        self._lender = lender
        self._lay_out(form, self._opened[1], nbytes)
        self.generation, self.seen = generation, 0
        return True

    def _open(self, handle: bytes, nbytes: int, lender: Lender) -> Any:
        if self._peers is None:
            raise OSError("this engine has no GPU")
        return self._peers.opened(handle, nbytes, lender)


def clear(file: int, number: int, nbytes: int) -> None:
    """Find nothing more in a segment of a file, since its owner has died. `nbytes`: of each segment."""
    os.pwrite(file, bytes(8), number * nbytes + 8 * _GENERATION)
