"""The measured cost of moving blocks, in seconds."""

from dataclasses import dataclass

_MEMORY = 0.2  # the weight of the newest sample


@dataclass(slots=True)
class MeasuredCost:
    """Running means per block; None before the first measurement."""

    store: float | None = None
    load: float | None = None

    def observe(self, blocks: int, seconds: float, *, load: bool) -> None:
        if not blocks:
            return
        if load:
            self.load = running_mean(self.load, seconds / blocks)
        else:
            self.store = running_mean(self.store, seconds / blocks)

    def back(self, blocks: int) -> float:
        """Seconds to load `blocks`. An unmeasured direction costs as much as the other, or 0."""
        return blocks * (self.load or self.store or 0.0)

    def round_trip(self, blocks: int) -> float:
        return blocks * (self.store or self.load or 0.0) + self.back(blocks)


def running_mean(old: float | None, new: float) -> float:
    return new if old is None else old + _MEMORY * (new - old)
