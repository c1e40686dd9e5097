"""Erases parts of a file."""

import ctypes
import os
from collections.abc import Callable
from functools import cache

_HOLE = 1 | 2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_ZEROS = bytes(2**20)


def erase(file: int, offset: int, count: int) -> None:
    """Replace bytes with zeros, which take no room on the disk where the file system can do that."""
    if punch_hole(file, offset, count):
        return
    for at in range(offset, offset + count, len(_ZEROS)):
        os.pwrite(file, _ZEROS[: offset + count - at], at)


def punch_hole(file: int, offset: int, count: int) -> bool:
    """Give the room of these bytes back. False: the system or the file system cannot."""
    call = _fallocate()
    return call is not None and call(file, _HOLE, offset, count) == 0


@cache
def _fallocate() -> Callable[..., int] | None:
    """Linux has it, other systems do not."""
    try:
        found = ctypes.CDLL(None).fallocate64
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found
