"""Which tokens of a long chat are still seen: the first few, and a window that ends with the newest one."""

from dataclasses import dataclass

GONE = -1  # in a request's list of blocks, in place of one that has left the window


@dataclass(frozen=True, slots=True)
class Window:
    """A token sees the first `sinks` tokens of its request, and the `size` up to itself, in no layer more.

    What a token sees is a matter of its position alone, so nothing changes with the moment when a block goes.
    """

    size: int
    sinks: int
    block_size: int

    @property
    def first(self) -> int:
        """So many blocks at the front are never let go."""
        return -(-self.sinks // self.block_size)

    @property
    def peak(self) -> int:
        """Blocks of the longest request at its fullest: a window, and a piece of a prompt as long as that."""
        return self.first + (2 * self.size + 1) // self.block_size + 2

    def start(self, position: int) -> int:
        """The first block, behind those of the sinks, that a token there and all later ones still see."""
        return max(self.first, (position - self.size + 1) // self.block_size)

    def longest_found(self, found: list[int | None]) -> int:
        """Of a chain of blocks, some of them there: after how many of them a request may go on."""
        there = 0  # how many blocks up to here are there without a gap
        runs = []
        for block in found:
            there = 0 if block is None else there + 1
            runs.append(there)
        opening = next((at for at, block in enumerate(found) if block is None), len(found))
        for count in range(len(found), 0, -1):
            needed = count - self.start(count * self.block_size)
            if runs[count - 1] >= needed and opening >= min(self.first, count):
                return count
        return 0


def held(blocks: list[int]) -> list[int]:
    """Those that are still there."""
    return [block for block in blocks if block != GONE]
