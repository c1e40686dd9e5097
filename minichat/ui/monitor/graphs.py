"""Small one-color graphs and the history they show. A Braille cell has two columns and four rows of dots."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import floor, inf, isfinite, log10

WINDOWS = {"30 s": 30.0, "2 min": 120.0, "10 min": 600.0}
KEPT = 8192  # samples: ten minutes at 13 a second
_HOLDS = 2.5  # seconds that a sample holds at most; the slowest polling is every two

_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)  # filled from the bottom
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
_ASCII = " _.-^"
_STEPS = 4  # heights in one line


def graph(
    values: Sequence[float], width: int, height: int = 1, *, ascii: bool = False, top: float | None = None
) -> list[str]:
    """Return the graph's lines from top to bottom. The newest value is at the right."""
    columns = width if ascii else 2 * width
    shown = values[-columns:] if columns > 0 else ()
    most = max(top or 0.0, max(shown, default=0.0)) or 1.0
    heights = [0] * (columns - len(shown)) + [_height(value / most, height) for value in shown]
    return [_line(heights, floor * _STEPS, ascii) for floor in reversed(range(height))]


def _height(share: float, lines: int) -> int:
    """The height in dots: at least one for any positive value."""
    return max(round(share * lines * _STEPS), 1) if share > 0 else 0


def _line(heights: Sequence[int], floor: int, ascii: bool) -> str:
    within = [min(max(height - floor, 0), _STEPS) for height in heights]
    if ascii:
        full = [height > floor + _STEPS for height in heights]
        return "".join("|" if more else _ASCII[here] for more, here in zip(full, within, strict=True))
    pairs = zip(within[::2], within[1::2], strict=True)
    return "".join(chr(0x2800 | _LEFT[left] | _RIGHT[right]) for left, right in pairs)


def bar(share: float, width: int, full: str, rest: str) -> str:
    filled = round(min(max(share, 0.0), 1.0) * width)
    return full * filled + rest * (width - filled)


def shares(parts: Sequence[float], width: int) -> list[int]:
    """Divide the cells among the parts. All cells are used; a zero part gets none."""
    total = sum(parts)
    if not 0 < total < inf:
        return [0] * len(parts)
    edges, reached = [0], 0.0
    for part in parts:
        reached += part
        edges.append(round(reached / total * width))
    return [after - before for before, after in pairwise(edges)]


def finite(value: float) -> float:
    """The value of a graph; 0 for one that is no number."""
    return value if isfinite(value) else 0.0


class History:
    """Timestamped samples of several values."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=KEPT)

    def add(self, at: float, *figures: float) -> None:
        if self._samples and at < self._samples[-1][0]:
            self._samples.clear()  # a new engine has a new clock
        if isfinite(at):
            self._samples.append((at, tuple(map(finite, figures))))

    @property
    def now(self) -> float:
        return self._samples[-1][0] if self._samples else 0.0

    def column(self, at: float, window: float, columns: int) -> int:
        """The column of a time in the window that ends now; negative if before it."""
        width = window / columns
        return columns - 1 - (floor(self.now / width) - floor(at / width))

    def columns(self, figure: int, window: float, columns: int) -> list[float]:
        """The mean of each column over its time. A sample holds until the next one, but not for long."""
        if columns <= 0 or not self._samples:
            return [0.0] * columns
        width = window / columns
        newest = floor(self.now / width)
        sums, first, until = [0.0] * columns, newest - columns + 1, self.now
        for at, figures in reversed(self._samples):
            end, begin, value = min(until, at + _HOLDS), max(at, first * width), figures[figure]
            if value and begin < end:
                for place in range(floor(begin / width), floor(end / width) + 1):
                    time = min(end, (place + 1) * width) - max(begin, place * width)
                    sums[place - first] += value * time
            if at < begin:
                break
            until = at
        passed = self.now - newest * width  # of the newest column, which shows a first sample at once
        last = sums[-1] / passed if sums[-1] else self._samples[-1][1][figure]
        return [*(each / width for each in sums[:-1]), last]


def rounded_up(value: float) -> float:
    """Round up to 1, 2, 5, 10, 20, 50 ..., so that the scale does not change with each value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(each for factor in (1, 2, 5, 10) if (each := factor * power) >= value * (1 - 1e-9))
