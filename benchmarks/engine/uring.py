"""Reads by an io_uring of Linux, for a benchmark: one thread, several reads in flight.

Python has no maintained library for it, so the three system calls are made here. Rings are shared with the
kernel, which a fence would order; the calls that submit and wait are one.
"""

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import ExitStack, closing

_SETUP, _ENTER = 425, 426  # system calls, the same number on all processors
_READ, _GET_EVENTS = 22, 1
_RINGS = (0, 0x8000000, 0x10000000)  # where the two rings and the entries are mapped
_ENTRY = struct.Struct("<BBHiQQIIQ24x")
_DONE = struct.Struct("<QiI")


class Ring:
    """Of up to `depth` reads at once, a power of two. Raises OSError where the kernel refuses it."""

    def __init__(self, depth: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        given = bytearray(120)
        self._fd = self._call(_SETUP, depth, (ctypes.c_char * 120).from_buffer(given))
        numbers = struct.unpack("<10I8IQ8IQ", given)
        self._entries, many = numbers[0], numbers[1]
        (self._head, self._tail, mask, _, _, _, array, *_), done = numbers[10:18], numbers[19:27]
        self._done_head, self._done_tail, done_mask, _, _, self._done_at, *_ = done
        sizes = array + 4 * self._entries, self._done_at + 16 * many, 64 * self._entries
        with ExitStack() as opened:
            opened.callback(os.close, self._fd)
            self._queue, self._done, self._list = (
                opened.enter_context(closing(mmap.mmap(self._fd, size, offset=offset)))
                for size, offset in zip(sizes, _RINGS, strict=True)
            )
            self._mask, self._done_mask = _word(self._queue, mask), _word(self._done, done_mask)
            for at in range(self._entries):
                struct.pack_into("<I", self._queue, array + 4 * at, at)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def read(self, pieces: Sequence[tuple[int, int]], memory: mmap.mmap, size: int) -> int:
        """Read `size` bytes of each (descriptor, offset), to a place in `memory` for each read in flight."""
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        free, left, total, waiting = [*range(self._entries)], [*reversed(pieces)], 0, 0
        while left or waiting:
            tail, new = _word(self._queue, self._tail), 0
            while left and free:
                (fd, offset), place = left.pop(), free.pop()
                entry = _READ, 0, 0, fd, offset, start + place * size, size, 0, place
                _ENTRY.pack_into(self._list, 64 * (tail + new & self._mask), *entry)
                new += 1
            struct.pack_into("<I", self._queue, self._tail, tail + new & 0xFFFFFFFF)
            self._call(_ENTER, self._fd, new, 1, _GET_EVENTS, None, 0)
            waiting += new
            head, tail = _word(self._done, self._done_head), _word(self._done, self._done_tail)
            while head != tail:
                at = self._done_at + 16 * (head & self._done_mask)
                place, found, _ = _DONE.unpack_from(self._done, at)
                if found < 0:
                    raise OSError(-found, os.strerror(-found))
                free.append(place)
                total, waiting, head = total + found, waiting - 1, head + 1 & 0xFFFFFFFF
            struct.pack_into("<I", self._done, self._done_head, head)
        return total

    def _call(self, *given: object) -> int:
        if (found := int(self._libc.syscall(*given))) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found


def _word(memory: mmap.mmap, at: int) -> int:
    return int(struct.unpack_from("<I", memory, at)[0])
