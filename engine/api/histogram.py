"""Counts of samples by size, as Prometheus keeps them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Counts(NamedTuple):
    """A histogram's state. Nothing in it changes after it is made."""

    bounds: tuple[float, ...] = ()
    counts: tuple[
        int, ...
    ] = ()  # samples up to each bound and above the one before; the last: above them all
    total: float = 0.0  # the sum of all samples

    def plus(self, other: "Counts") -> "Counts":
        """The samples of both, which have the same bounds, unless one has no samples at all."""
        if not self.counts or not other.counts:
            return self if self.counts else other
        pairs = zip(self.counts, other.counts, strict=True)
        return Counts(self.bounds, tuple(map(sum, pairs)), self.total + other.total)


class Histogram:
    """Written by one thread and read by others. A read may miss the newest sample, never an older one."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def view(self) -> Counts:
        return Counts(self._bounds, tuple(self._counts), self._total)
