"""What a step costs and what a device can do at most, which together explain how fast steps are."""

from collections.abc import Iterable
from typing import NamedTuple


class Reads(NamedTuple):
    """What a step reads from device memory: weights once, the cache for each row. What a token costs."""

    weights: int = 0  # bytes
    cache: tuple[tuple[int, int], ...] = ()  # (window in tokens, or 0 for none; bytes per token)
    attention: tuple[tuple[int, int], ...] = ()  # likewise: operations of a token for each that it sees
    products: int = 0  # operations of a token with the weights, whatever their scheme; 0: not counted
    head: int = 0  # those of `products` for logits, which most tokens of a prompt do not need
    experts: int = 0  # those of the weights' bytes of which a step reads the experts that its tokens choose
    chosen: float = 1.0  # the share of a layer's experts that a token chooses
    states: int = 0  # bytes of recurrent states that it reads and writes for each row
    recurrence: int = 0  # operations of a token with recurrent states

    def of_step(self, tokens: float) -> int:
        """Bytes of weights that a step of `tokens` tokens reads, if these choose experts evenly."""
        return self.weights - round(self.experts * (1 - self.chosen) ** tokens)

    def of_cache(self, contexts: Iterable[tuple[int, float]]) -> int:
        """Bytes of cache that a step reads, as in `Throughput`."""
        found = dict(contexts)
        return round(sum(each * found.get(window, 0.0) for window, each in self.cache))

    def of_attention(self, pairs: Iterable[tuple[int, float]]) -> float:
        """Operations of a step's attention, as in `Throughput`."""
        found = dict(pairs)
        return sum(each * found.get(window, 0.0) for window, each in self.attention)


class Speeds(NamedTuple):
    """The measured peak speeds of a device."""

    read: float  # bytes per second
    multiply: float  # operations per second of products in the present scheme of the weights; 0: not known
