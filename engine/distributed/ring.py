"""One writer, several readers: messages as bytes through a ring in shared memory.

Each message is written once. A pipe to each reader carries the writer's position, and a pipe back carries the
reader's. So a process that waits sleeps, a dead one ends its pipe, and the kernel orders the memory accesses:
no reader sees a position before the bytes up to it.
"""

import os
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.api.errors import BadWire
from engine.distributed.memory import mapped
from engine.distributed.waiting import readable

CAPACITY = 2**21  # bytes; a longer message passes through in pieces
MOST = 2**30  # bytes of a message
HEAD = struct.Struct("<qqq")  # its number, its kind, its length
_POSITION = struct.Struct("<q")
_MANY = 2**16  # bytes: as much as a pipe holds
_POLL = 0.25  # seconds between checks that the readers are alive


class RingEnds(NamedTuple):
    """One side of a reader's two pipes."""

    read: int
    write: int

    def close(self) -> None:
        os.close(self.read)
        os.close(self.write)


class RingMessage(NamedTuple):
    number: int
    kind: int
    payload: bytes


def pipes() -> tuple[RingEnds, RingEnds]:
    """Return the writer's and the reader's ends."""
    (to_read, to_write), (back_read, back_write) = os.pipe(), os.pipe()
    return RingEnds(back_read, to_write), RingEnds(to_read, back_write)


class RingWriter:
    def __init__(self, memory: int, readers: Sequence[RingEnds], check: Callable[[], None]) -> None:
        """`check` raises if a reader is lost; it is called while the ring is full."""
        self._bytes, self._check = memoryview(mapped(memory, CAPACITY)), check
        self._readers = list(readers)
        self._read_up_to = [0] * len(readers)
        self._written = self._number = 0
        for each in readers:
            os.set_blocking(each.read, False)

    def send(self, kind: int, payload: bytes) -> int:
        """Write a message and wake the readers. Returns its number. Waits only while the ring is full.

        Raises BrokenPipeError if a reader has ended.
        """
        if len(payload) > MOST:
            raise ValueError(f"a message may have {MOST} bytes, this one has {len(payload)}")
        number, self._number = self._number, self._number + 1
        data = memoryview(HEAD.pack(number, kind, len(payload)) + payload)
        while data:
            at = self._written % CAPACITY
            size = min(len(data), self._room(), CAPACITY - at)
            self._bytes[at : at + size] = data[:size]
            self._written += size
            data = data[size:]
            if not data or not self._free():
                self._wake()
        return number

    def _wake(self) -> None:
        position = _POSITION.pack(self._written)
        for each in self._readers:
            os.write(each.write, position)

    def _free(self) -> int:
        return CAPACITY - (self._written - min(self._read_up_to))

    def _room(self) -> int:
        """Wait until there is room, and return how much."""
        while not (free := self._free()):
            slowest = min(range(len(self._readers)), key=self._read_up_to.__getitem__)
            readable(self._readers[slowest].read, _POLL)
            self._check()
            self._update()
        return free

    def _update(self) -> None:
        for index, each in enumerate(self._readers):
            try:
                data = os.read(each.read, _MANY)
            except BlockingIOError:
                continue
            if not data:
                raise BrokenPipeError("a reader has closed its end of the ring")
            self._read_up_to[index] = _last(data, self._read_up_to[index], self._written)


class RingReader:
    def __init__(self, memory: int, ends: RingEnds) -> None:
        self._bytes, self._ends = memoryview(mapped(memory, CAPACITY)), ends
        self._written = self._read = self._reported = self._number = 0

    def receive(self, seconds: float | None = None) -> RingMessage | None:
        """Return the next message; None if there is none after `seconds`. Raises EOFError at the end."""
        if self._read == self._written and not self._wait(seconds):
            return None
        kind, size = read_head(self._take(HEAD.size), self._number)
        self._number += 1
        return RingMessage(self._number - 1, kind, self._take(size))

    def _take(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            if self._read == self._written:
                self._wait(None)
            at = self._read % CAPACITY
            step = min(size - len(taken), self._written - self._read, CAPACITY - at)
            taken += self._bytes[at : at + step]
            self._read += step
            if self._read - self._reported >= CAPACITY // 4:  # a writer without room waits for this
                self._reported = self._read
                os.write(self._ends.write, _POSITION.pack(self._read))
        return bytes(taken)

    def _wait(self, seconds: float | None) -> bool:
        """Wait for the writer's position."""
        if seconds is not None and not readable(self._ends.read, seconds):
            return False
        if not (data := os.read(self._ends.read, _MANY)):
            raise EOFError("the writer has ended")
        self._written = _last(data, self._read + 1, self._read + CAPACITY)
        return True


def read_head(data: bytes, expected: int) -> tuple[int, int]:
    """The kind and the length of the message with the expected number."""
    number, kind, size = HEAD.unpack(data)
    if number != expected or not 0 <= size <= MOST:
        raise BadWire(f"message {expected} has the number {number} and {size} bytes")
    return kind, size


def _last(data: bytes, least: int, most: int) -> int:
    """The last of the positions in `data`, checked: a wrong one would read or overwrite another message."""
    if len(data) % _POSITION.size:
        raise BadWire(f"the ring has {len(data)} bytes of positions")
    (position,) = _POSITION.unpack_from(data, len(data) - _POSITION.size)
    if not least <= position <= most:
        raise BadWire(f"the ring is at {position}, which is not between {least} and {most}")
    return int(position)
