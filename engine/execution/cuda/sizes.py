"""The kinds of graphs, and which of them have been captured.

A start captures only some of them, so that it is ready sooner. Until the others are captured, by an idle
engine or because they were missed often, decodes take the graph of a larger size: padding has no context, so
it costs a few percent of a step. Steps with pieces of prompts have their own: in a larger graph the same
tokens have other bits, so what a prompt leaves in the cache would depend on what the engine has run before.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.execution.protocol import PIECE_SIZES

if TYPE_CHECKING:  # imports torch
    from engine.execution.cuda.sampling_fields import SamplingFlags

_LARGER = 1.5  # times the size of a batch
HOLDS_WHOLE = True  # False: a step that splits no context never takes the graph of one that may
_PIECES = 512  # tokens of the largest graph with pieces of prompts, if launching a larger step is no wait
_MOST = 128  # steps of a size and kind in larger graphs, which cost as much as a capture


def first_sizes(sizes: Sequence[int]) -> list[int]:
    """The sizes to capture first: for each of `sizes`, one of them is large enough, and not too large."""
    found, at = list[int](), 0
    while at < len(sizes):
        found.append(sizes[bisect_right(sizes, _LARGER * sizes[at]) - 1])
        at = bisect_right(sizes, found[-1])
    return found


class Graph(NamedTuple):
    """What the launches of a graph depend on."""

    size: int  # rows, or tokens with pieces of prompts
    flags: "SamplingFlags | None"  # None: it does not sample
    cut: bool  # whether attention splits the context of a decode
    pieces: bool = False  # of prompts
    decodes: bool = True
    waits: bool = False  # for blocks, layer by layer
    adapted: bool = False  # whether a row has an adapter
    layout: Hashable = None  # of the adapters, see AdapterBank
    observed: bool = False  # whether attention is summed up by block


class CapturedGraphs:
    """Chooses the graph of a step. The same steps and captures lead to the same choices."""

    def __init__(self, batches: Sequence[int], pieces: Sequence[int]) -> None:
        """Both: the sizes that there are."""
        self._batches, self._pieces = _Sizes(batches), pieces
        self._captured: set[Graph] = set()

    def size_of_batch(self, rows: int, flags: "SamplingFlags | None") -> int:
        return self._batches.choose(rows, flags)

    def size_of_pieces(self, tokens: int) -> int:
        return self._pieces[bisect_left(self._pieces, tokens)]

    def instead_of(self, graph: Graph) -> Graph:
        """The one that can split contexts can hold a step that splits none: nothing is merged then."""
        if graph.cut or graph in self._captured or not HOLDS_WHOLE:
            return graph
        other = graph._replace(cut=True)
        return other if other in self._captured else graph

    def note(self, graph: Graph) -> None:
        """It is captured now, unless there was no memory for it."""
        self._captured.add(graph)
        if not graph.pieces:
            self._batches.note(graph.size, graph.flags)

    def forget(self) -> None:
        self._captured.clear()
        self._batches.forget()


class _Sizes:
    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._captured: dict[Hashable, set[int]] = defaultdict(set)
        self._missed: Counter[tuple[int, Hashable]] = Counter()

    def choose(self, count: int, kind: Hashable) -> int:
        """`kind`: what else the launches of the step depend on."""
        own, captured = self._sizes[bisect_left(self._sizes, count)], self._captured[kind]
        if own in captured:
            return own
        larger = [size for size in captured if own < size <= _LARGER * own]
        if not larger or self._missed[own, kind] == _MOST:
            return own
        self._missed[own, kind] += 1
        return min(larger)

    def note(self, size: int, kind: Hashable) -> None:
        self._captured[kind].add(size)

    def forget(self) -> None:
        self._captured.clear()
        self._missed.clear()


def piece_sizes(longest: int) -> tuple[int, ...]:
    """The sizes of graphs with pieces of prompts. `longest`: see Stage (graphs.py)."""
    return PIECE_SIZES[: bisect_right(PIECE_SIZES, max(_PIECES, longest))]
