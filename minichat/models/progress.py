"""The progress of a transfer in readable form: bytes, rate, time left."""

import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from math import isfinite

_SPAN = 5.0  # seconds over which the rate is averaged
_SETTLED = 1.0  # seconds before a rate is shown


class ProgressMeter:
    """Measures the progress of a transfer and formats it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self.done = self.total = 0

    def update(self, done: int, total: int) -> None:
        now = self._clock()
        if done < self.done or not self.done:  # a new count, or the first bytes: what they waited for differs
            self._seen.clear()
        self.done, self.total = done, total
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _SPAN:
            self._seen.popleft()

    @property
    def fraction(self) -> float | None:
        return self.done / self.total if self.total else None

    @property
    def rate(self) -> float:
        """Bytes per second; 0 if it is too early to estimate."""
        if len(self._seen) < 2:
            return 0.0
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return (last - first) / (now - began) if now - began >= _SETTLED else 0.0

    def text(self) -> str:
        parts = [_of(self.done, self.total)]
        if rate := self.rate:
            parts.append(f"{size(rate)}/s")
            if self.total > self.done:
                parts.append(f"{duration((self.total - self.done) / rate)} left")
        return "  ".join(parts)


def size(count: float) -> str:
    """A size with three significant digits, such as 4.20 kB or 1.25 GB; "-" if it could not be measured."""
    if not isfinite(count):
        return "-"
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if count >= 0.9995 * 1000**power:
            value = count / 1000**power
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = max(round(seconds), 1)
    units = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    for (large, name), (small, under) in pairwise(units):
        if large:
            rest = f"{small:02}" if name == "h" else small
            return f"{large} {name} {rest} {under}" if small and large < 10 else f"{large} {name}"
    return f"{whole} s"


def _of(done: int, total: int) -> str:
    """Progress such as 0.30 of 1.20 GB, in the unit of the total."""
    if not total:
        return size(done)
    power, unit = next(
        ((power, unit) for power, unit in ((3, "GB"), (2, "MB")) if total >= 0.1 * 1000**power), (1, "kB")
    )
    places = 2 if unit == "GB" else 1
    return f"{done / 1000**power:.{places}f} of {total / 1000**power:.{places}f} {unit}"
