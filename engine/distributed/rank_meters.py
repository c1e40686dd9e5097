"""What the ranks have measured of their steps."""

from collections.abc import Iterable

_NEWEST = 0.1  # the weight of the newest step in a running mean


class RankMeters:
    def __init__(self, ranks: int) -> None:
        self.joining = [0.0] * ranks  # running means: the share of a step spent in collectives
        # Decaying sums: seconds that each rank worked, and the time in which it did, with steps in flight.
        self._worked, self._passed = [0.0] * ranks, 0.0

    def note_joining(self, shares: Iterable[float]) -> None:
        """Take the share of a step that each rank has spent in collectives."""
        for rank, share in enumerate(shares):
            self.joining[rank] += _NEWEST * (share - self.joining[rank])

    def note_work(self, worked: Iterable[float], passed: float) -> None:
        """Take the seconds that each rank has worked, of those that have passed with steps in flight."""
        self._passed += passed - _NEWEST * self._passed
        for rank, seconds in enumerate(worked):
            self._worked[rank] += seconds - _NEWEST * self._worked[rank]

    def bubble(self, rank: int) -> float:
        """The share of the time with steps in flight in which a rank had nothing to do."""
        return max(0.0, 1 - self._worked[rank] / self._passed) if self._passed else 0.0
