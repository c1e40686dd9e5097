"""What the ranks have measured of their steps."""

from collections.abc import Iterable, Sequence

from engine.api.snapshot import Load
from engine.distributed.collective import Exchanged
from engine.execution.load import LoadMeter

_NEWEST = 0.1  # the weight of the newest step in a running mean


class RankMeters:
    def __init__(self, ranks: int, gpus: Sequence[str] = ()) -> None:
        """`gpus`: the UUID of each rank's, if they are on GPUs of this machine."""
        self._loads = [LoadMeter.named(each) for each in gpus]
        # Running means: the share of the time spent in collectives, and bytes sent per second.
        self.joining, self.traffic = [0.0] * ranks, [0.0] * ranks
        self._exchanged = [Exchanged()] * ranks  # at the latest change
        self._since = [0.0] * ranks  # seconds since then
        # Decaying sums: seconds that each rank worked, and the time in which it did, with steps in flight.
        self._worked, self._passed = [0.0] * ranks, 0.0

    def note_exchanges(self, totals: Iterable[Exchanged], passed: float) -> None:
        """Take what each rank has exchanged so far, and the seconds that have passed with steps in flight.

        On a GPU the totals change only every few steps.
        """
        for rank, (seconds, sent) in enumerate(totals):
            self._since[rank] += passed
            before, since = self._exchanged[rank], self._since[rank]
            if sent == before.sent or since <= 0:
                continue
            share, rate = min(1.0, (seconds - before.seconds) / since), (sent - before.sent) / since
            self.joining[rank] += _NEWEST * (share - self.joining[rank])
            self.traffic[rank] += _NEWEST * (rate - self.traffic[rank])
            self._exchanged[rank], self._since[rank] = Exchanged(seconds, sent), 0.0

    def note_work(self, worked: Iterable[float], passed: float) -> None:
        """Take the seconds that each rank has worked, of those that have passed with steps in flight."""
        self._passed += passed - _NEWEST * self._passed
        for rank, seconds in enumerate(worked):
            self._worked[rank] += seconds - _NEWEST * self._worked[rank]

    def load(self, rank: int) -> Load | None:
        return self._loads[rank].read() if self._loads else None

    def bubble(self, rank: int) -> float:
        """The share of the time with steps in flight in which a rank had nothing to do."""
        return max(0.0, 1 - self._worked[rank] / self._passed) if self._passed else 0.0
