"""What ranks of one machine need to meet: file descriptors of memory and pipes. Needs no torch."""

import os
from typing import NamedTuple

PLACE = 2**20  # bytes of a part; a larger tensor takes several exchanges


class Wires(NamedTuple):
    """What a rank needs to meet the others. All are file descriptors."""

    memory: int
    wake: tuple[int, ...]  # by rank: where to write a byte once this rank's part is in memory; -1 for itself
    woken: tuple[int, ...]  # by rank: where its byte arrives; -1 for itself
    alarm: tuple[int, int]  # a pipe that is never read while the ranks work: a byte in it stops all of them

    def fds(self) -> list[int]:
        return [each for each in (self.memory, *self.wake, *self.woken, *self.alarm) if each >= 0]


def memory_size(ranks: int) -> int:
    return 2 * ranks * PLACE


def wires(ranks: int, memory: int) -> list[Wires]:
    """Return the wires of each rank. The memory and the alarm are common to all."""
    pairs = {(a, b): os.pipe() for a in range(ranks) for b in range(ranks) if a != b}
    alarm = os.pipe()
    everyone = range(ranks)
    return [
        Wires(
            memory,
            tuple(-1 if other == rank else pairs[rank, other][1] for other in everyone),
            tuple(-1 if other == rank else pairs[other, rank][0] for other in everyone),
            alarm,
        )
        for rank in everyone
    ]
