"""What moving blocks has cost so far, in seconds."""

from dataclasses import dataclass

_MEMORY = 0.2  # the weight of the newest sample


@dataclass(slots=True)
class MeasuredCost:
    """Running means, a block. None: never seen."""

    store: float | None = None
    load: float | None = None

    def saw(self, blocks: int, seconds: float, *, load: bool) -> None:
        if not blocks:
            return
        if load:
            self.load = running_mean(self.load, seconds / blocks)
        else:
            self.store = running_mean(self.store, seconds / blocks)

    def back(self, blocks: int) -> float:
        """To load so many. A way that was never taken costs as much as the other; if neither was, nothing."""
        return blocks * (self.load or self.store or 0.0)

    def there_and_back(self, blocks: int) -> float:
        return blocks * (self.store or self.load or 0.0) + self.back(blocks)


def running_mean(old: float | None, new: float) -> float:
    return new if old is None else old + _MEMORY * (new - old)
