"""Figures over the last minutes, in the columns of a graph."""

from collections import deque
from math import floor, log10

WINDOWS = {"30 s": 30.0, "2 min": 120.0, "10 min": 600.0}
_KEPT = 8192  # samples: ten minutes at 13 a second
_HOLDS = 2.5  # seconds for which a figure stands where none follows: the slowest look is every two


class History:
    """Samples of some figures, each with its moment in seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=_KEPT)

    def add(self, at: float, *figures: float) -> None:
        if self._samples and at < self._samples[-1][0]:
            self._samples.clear()  # another engine has another clock
        self._samples.append((at, figures))

    @property
    def now(self) -> float:
        return self._samples[-1][0] if self._samples else 0.0

    def column(self, at: float, window: float, columns: int) -> int:
        """Where a moment lies in the window that ends now; below 0: before it."""
        width = window / columns
        return columns - 1 - (floor(self.now / width) - floor(at / width))

    def columns(self, figure: int, window: float, columns: int) -> list[float]:
        """The mean of each; the one before where none was taken; zero where the engine was not looked at."""
        if columns <= 0:
            return []
        taken: list[list[float]] = [[] for _ in range(columns)]
        later = self.now
        for at, figures in reversed(self._samples):
            place = self.column(at, window, columns)
            if later - at <= _HOLDS:
                for between in range(max(place + 1, 0), self.column(later, window, columns)):
                    taken[between] = [figures[figure]]
            if place < 0:
                break
            taken[place].append(figures[figure])
            later = at
        return [sum(each) / len(each) if each else 0.0 for each in taken]


def rounded_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 ...: a scale that stays while figures move a little."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(each for factor in (1, 2, 5, 10) if (each := factor * power) >= value * (1 - 1e-9))
