"""The measured cost of moving blocks, in seconds."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

_KEPT = 5  # samples of a size
_DOUBT = 0.99  # what each decision against a tier leaves of its estimate
_LEAST = 1 / 16  # a tier that is slower than this is not tried again


@dataclass(slots=True)
class BySize:
    """Measured seconds, by the bit length of the size that they depend on."""

    _samples: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)  # seconds / size, and size

    def __bool__(self) -> bool:
        return bool(self._samples)

    @property
    def largest(self) -> int:
        """The bit length of the largest size that was measured."""
        return max(self._samples, default=0)

    def observe(self, size: int, seconds: float) -> None:
        samples = self._samples.setdefault(size.bit_length(), deque(maxlen=_KEPT))
        samples.append((seconds / size, size))

    def each(self, size: int) -> float:
        """Seconds / size, of the largest measured sizes that are no larger, or else the smallest. 0: none."""
        smaller = (bits for bits in self._samples if bits <= size.bit_length())
        return self._usual(max(smaller, default=min(self._samples)))[0] if self._samples else 0.0

    def whole(self, size: int) -> float:
        """Seconds, on a line through the two nearest measured sizes. 0: none was measured.

        Beside one alone, never too many: a larger size takes as long, a smaller one its share.
        """
        if not self._samples or size.bit_length() in self._samples:
            return size * self.each(size)
        known = [(at, each * at) for each, at in map(self._usual, sorted(self._samples))]
        above = bisect_left(known, (size, 0.0))
        if above == 0:
            return size * self.each(size)
        if len(known) == 1:
            return known[0][1]
        (first, low), (second, high) = known[above - 1 : above + 1] if above < len(known) else known[-2:]
        return max(low, low + (high - low) / (second - first) * (size - first))

    def clear(self) -> None:
        self._samples.clear()

    def _usual(self, bits: int) -> tuple[float, int]:
        """The lower median: the first of a kind, and some others, take much longer."""
        samples = sorted(self._samples[bits])
        return samples[(len(samples) - 1) // 2]


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
        return self._trust * (self.load or self.store).whole(blocks)

    def round_trip(self, blocks: int) -> float:
        return self._trust * (self.store or self.load).whole(blocks) + self.back(blocks)

    def doubt(self) -> None:
        """The estimate has decided against a load. If nothing confirms it, one is tried after a while."""
        self._trust = max(_LEAST, _DOUBT * self._trust)
