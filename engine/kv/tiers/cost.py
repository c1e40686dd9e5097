"""The measured cost of moving blocks, in seconds."""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from math import inf

_KEPT = 5  # samples of a size
_DOUBT = 0.99  # what each decision against a tier leaves of its estimate
_LEAST = 1 / 16  # a tier that is slower than this is not tried again, except after its first transfer


@dataclass(slots=True)
class BySize:
    """Measured seconds, by the bit length of the size that they depend on."""

    count: int = 0  # of measurements
    _samples: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)  # seconds / size, and size
    _usual: dict[int, tuple[float, int]] = field(default_factory=dict)  # the lower median of each

    def __bool__(self) -> bool:
        return bool(self._samples)

    @property
    def largest(self) -> int:
        """The bit length of the largest size that was measured."""
        return max(self._samples, default=0)

    def observe(self, size: int, seconds: float) -> None:
        bits = size.bit_length()
        if (samples := self._samples.get(bits)) is None:
            samples = self._samples[bits] = deque(maxlen=_KEPT)
        samples.append((seconds / size, size))
        self.count += 1
        self._usual[bits] = sorted(samples)[(len(samples) - 1) // 2]  # some take much longer

    def each(self, size: int) -> float:
        """Seconds / size, of the largest measured sizes that are no larger, or else the smallest. 0: none."""
        if size.bit_length() not in self._usual:
            smaller = (bits for bits in self._usual if bits <= size.bit_length())
            return self._usual[max(smaller, default=min(self._usual))][0] if self._usual else 0.0
        return self._usual[size.bit_length()][0]

    def whole(self, size: int) -> float:
        """Seconds, on a line through the two nearest measured sizes, but no more than any larger one took.

        Beside one size alone, never too many: a larger one takes as long, a smaller one its share. 0: none
        was measured.
        """
        known = sorted((at, each * at) for each, at in self._usual.values())
        below = bisect_right(known, (size, inf))
        if not below or size.bit_length() in self._usual:
            found = size * self.each(size)
        elif len(known) == 1:
            found = known[0][1]
        else:
            (first, low), (second, high) = known[min(below, len(known) - 1) - 1 :][:2]
            found = max(low, low + (high - low) / (second - first) * (size - first))
        return min([found, *(seconds for _, seconds in known[below:])])

    def clear(self) -> None:
        self._samples.clear()
        self._usual.clear()
        self.count = 0


@dataclass(slots=True)
class MeasuredCost:
    """Of stores and loads, by their number of blocks."""

    store: BySize = field(default_factory=BySize)
    load: BySize = field(default_factory=BySize)
    _trust: float = 1.0  # in what was measured

    def observe(self, blocks: int, seconds: float, *, load: bool) -> None:
        if not blocks:
            return
        (self.load if load else self.store).observe(blocks, seconds)
        if load:
            self._trust = 1.0

    def back(self, blocks: int) -> float:
        """Seconds to load `blocks`. An unmeasured direction costs as much as the other, or 0."""
        return self._seconds(self.load or self.store, blocks)

    def round_trip(self, blocks: int) -> float:
        return self._seconds(self.store or self.load, blocks) + self.back(blocks)

    def _seconds(self, measured: BySize, blocks: int) -> float:
        """The first transfer loads kernels and starts threads, so it says little about others."""
        return measured.whole(blocks) * (_LEAST if measured.count == 1 else self._trust)

    def doubt(self) -> None:
        """The estimate has decided against a load. If nothing confirms it, one is tried after a while."""
        self._trust = max(_LEAST, _DOUBT * self._trust)
