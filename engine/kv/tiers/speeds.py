"""Measures what a disk can do as a tier, in about a second at most."""

import errno
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

AMOUNT = 2**25  # bytes, fewer if the time runs out
_LONGEST = 0.4  # seconds for each direction
_SYNC = 2**22  # bytes written between two syncs


class TierSpeeds(NamedTuple):
    """Bytes per second."""

    store: float
    load: float


def disk_speeds(folder: Path, *, direct: bool, amount: int = 0, piece: int = 2**20) -> TierSpeeds | None:
    """Writes that reach the disk, and reads that come from it. None: the file system has no O_DIRECT."""
    data = mmap.mmap(-1, piece)  # O_DIRECT needs aligned memory
    data.write(os.urandom(piece))  # some disks and file systems compress
    with TemporaryFile(dir=folder) as file:
        fd = file.fileno()
        try:
            if direct and not hasattr(os, "O_DIRECT"):  # not on Linux
                return None
            if direct:
                fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT)

            def write(at: int) -> None:
                os.pwrite(fd, data, at)
                if (at + piece) % _SYNC == 0:
                    os.fsync(fd)

            def read(at: int) -> None:
                os.preadv(fd, [data], at)

            written, store = _timed(write, amount or AMOUNT, piece)
            os.fsync(fd)
            if hasattr(os, "posix_fadvise"):  # else it reads from memory
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return TierSpeeds(store, _timed(read, written, piece)[1])
        except OSError as error:
            if direct and error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT):
                return None
            raise
        finally:
            if fd != file.fileno():
                os.close(fd)


def _timed(work: Callable[[int], None], amount: int, piece: int) -> tuple[int, float]:
    """Work at one place after the other. Returns the bytes covered, and bytes per second."""
    began, done = time.perf_counter(), 0
    while done < amount and (done % _SYNC or not done or time.perf_counter() - began < _LONGEST):
        work(done)
        done += piece
    return done, done / (time.perf_counter() - began)
