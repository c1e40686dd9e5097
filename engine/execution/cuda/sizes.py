"""The sizes of graphs, and which of them have been captured.

A start captures only some of them, so that it is ready sooner. Until the others are captured, by an idle
engine or because they were missed often, their steps take the graph of a larger size.

Padding of a decode has no context, so it costs a few percent of a step. That of a prompt costs as much as
other tokens, but in small graphs only, where a step takes less than a tenth of a capture.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from engine.execution.protocol import PIECE_SIZES

_LARGER = 1.5  # times the size of a batch
_LARGER_PIECES = 2.0  # times the tokens of a step with pieces of prompts
_PIECES = 512  # tokens of the largest graph with pieces of prompts, if launching a larger step is no wait
_MOST, _MOST_PIECES = 128, 8  # steps of a size and kind in larger graphs, which cost as much as a capture


def first_sizes(sizes: Sequence[int]) -> list[int]:
    """The sizes to capture first: for each of `sizes`, one of them is large enough, and not too large."""
    found, at = list[int](), 0
    while at < len(sizes):
        found.append(sizes[bisect_right(sizes, _LARGER * sizes[at]) - 1])
        at = bisect_right(sizes, found[-1])
    return found


class GraphSizes:
    """Chooses the size of the graph for a step. The same steps and captures lead to the same choices."""

    def __init__(self, sizes: Sequence[int], larger: float = _LARGER, most: int = _MOST) -> None:
        self._sizes, self._larger, self._most = sizes, larger, most
        self._captured: dict[Hashable, set[int]] = defaultdict(set)
        self._missed: Counter[tuple[int, Hashable]] = Counter()

    def smallest(self, rows: int) -> int:
        return self._sizes[bisect_left(self._sizes, rows)]

    def choose(self, rows: int, kind: Hashable) -> int:
        """`kind`: what else the launches of the step depend on."""
        own, captured = self.smallest(rows), self._captured[kind]
        if own in captured:
            return own
        larger = [size for size in captured if own < size <= self._larger * own]
        if not larger or self._missed[own, kind] == self._most:
            return own
        self._missed[own, kind] += 1
        return min(larger)

    def note(self, size: int, kind: Hashable) -> None:
        """This size has a graph now, unless there was no memory for one."""
        self._captured[kind].add(size)

    def forget(self) -> None:
        self._captured.clear()
        self._missed.clear()


def piece_sizes(longest: int) -> tuple[int, ...]:
    """The sizes of graphs with pieces of prompts. `longest`: see Stage (graphs.py)."""
    return PIECE_SIZES[: bisect_right(PIECE_SIZES, max(_PIECES, longest))]


def sizes_of_pieces(longest: int) -> GraphSizes:
    return GraphSizes(piece_sizes(longest), _LARGER_PIECES, _MOST_PIECES)
