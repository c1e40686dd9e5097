"""The tokens that layers with a window read: the first few, and a window that ends with the newest."""

from dataclasses import dataclass
from typing import ClassVar

GONE = -1  # replaces a block that has left the window, or was evicted, in a request's list


@dataclass(frozen=True, slots=True)
class Window:
    """A token sees its request's first `sinks` tokens and the `size` tokens up to itself.

    What a token sees depends only on its position, not on when blocks are released.
    """

    size: int
    sinks: int
    block_size: int
    piece: int = 0  # the most tokens of a prompt in one step; 0: as many as the window has
    option: ClassVar[str] = "kv_window"

    @property
    def what(self) -> str:
        return f"window of {self.size} tokens"

    @property
    def first(self) -> int:
        """The number of blocks at the front that are never released."""
        return -(-self.sinks // self.block_size)

    @property
    def longest(self) -> int:
        """The most tokens of a prompt in one step. More could need more blocks than were reserved."""
        return self.piece or self.size

    @property
    def peak(self) -> int:
        """Most blocks a request can hold: the sinks, a window, and a piece of a prompt."""
        return self.first + (self.size + self.longest + 1) // self.block_size + 2

    def start(self, position: int) -> int:
        """The first block after the sinks that a token at `position` and all later ones still see."""
        return max(self.first, (position - self.size + 1) // self.block_size)


def held(blocks: list[int]) -> list[int]:
    """The blocks that a request still holds."""
    return [block for block in blocks if block != GONE]
