"""The tokens of a long chat that stay visible: the first few, and a window that ends with the newest."""

from dataclasses import dataclass
from typing import ClassVar

GONE = -1  # replaces a block that has left the window, or was evicted, in a request's list


@dataclass(frozen=True, slots=True)
class Window:
    """A token sees its request's first `sinks` tokens and the `size` tokens up to itself, in every layer.

    What a token sees depends only on its position, not on when blocks are released.
    """

    size: int
    sinks: int
    block_size: int
    option: ClassVar[str] = "kv_window"

    @property
    def what(self) -> str:
        return f"window of {self.size} tokens"

    @property
    def first(self) -> int:
        """The number of blocks at the front that are never released."""
        return -(-self.sinks // self.block_size)

    @property
    def peak(self) -> int:
        """Most blocks a request can hold: the sinks, a window, and a prompt chunk as long as the window."""
        return self.first + (2 * self.size + 1) // self.block_size + 2

    def start(self, position: int) -> int:
        """The first block after the sinks that a token at `position` and all later ones still see."""
        return max(self.first, (position - self.size + 1) // self.block_size)

    def longest_found(self, found: list[int | None]) -> int:
        """How many of these blocks a request can start from. `found` has None for missing blocks."""
        there = 0  # length of the run of found blocks that ends here
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
    """The blocks that a request still holds."""
    return [block for block in blocks if block != GONE]
