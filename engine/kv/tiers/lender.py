"""The process that lends memory of its device, and whether it still has it."""

from pathlib import Path
from typing import NamedTuple, Self

_EXITING = 4  # Linux's flag of a process that ends, which is set before any of its memory is given back


class Lender(NamedTuple):
    pid: int
    began: int  # in the kernel's ticks: a later process may have the same number

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, _began(pid))

    @property
    def alive(self) -> bool:
        """Whether it had all of its memory until now. A killed process that goes away is no longer alive."""
        return _began(self.pid) == self.began


def _began(pid: int) -> int:
    """When it has started; -1 if it has ended or is about to."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return -1
    return -1 if state in (b"Z", b"X") or int(fields[5]) & _EXITING else int(fields[18])
