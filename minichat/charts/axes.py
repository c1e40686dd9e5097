"""Where numbers lie along the axis of a chart, and which of them are written there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor, log10

_SPAN = 10  # times the smallest: what reaches further goes by powers of ten
_STEPS = 5  # between the ticks of an axis that begins at zero, at most


@dataclass(frozen=True, slots=True)
class Axis:
    """`place` takes a number to its share of the axis; `ticks` are such shares, and what is written there.

    It begins at zero, so that a small difference looks small. Where that would lay small numbers on top of
    each other it goes by powers of ten from the share `begins` on: zero, which is none, stands apart below.
    """

    place: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]
    begins: float = 0.0


def axis(values: Sequence[float]) -> Axis:
    """With room for all of them."""
    above = [value for value in values if value > 0]
    if above and max(above) > _SPAN * min(above):
        return _by_powers(min(above), max(above), zero=len(above) < len(values))
    return _from_zero(max(above, default=1.0))


def _from_zero(most: float) -> Axis:
    power = 10.0 ** floor(log10(most / _STEPS))
    step = next(each for factor in (1, 2, 2.5, 5, 10) if (each := factor * power) * _STEPS >= most)
    steps = floor(most / step + 1e-9)  # 0.3 is three times 0.1, which floats miss
    return Axis(
        lambda value: value / most, tuple((n * step / most, _number(n * step)) for n in range(steps + 1))
    )


def _by_powers(least: float, most: float, *, zero: bool) -> Axis:
    first, last = floor(log10(least)), ceil(log10(most))
    low = first - zero

    def place(value: float) -> float:
        return ((log10(value) if value > 0 else low) - low) / (last - low)

    powers = tuple((place(10.0**power), _number(10.0**power)) for power in range(first, last + 1))
    return Axis(place, (*[(0.0, "0")] * zero, *powers), begins=place(10.0**first))


def _number(value: float) -> str:
    """In full, as people write it: 0.00001 and 150,000."""
    return format(Decimal(f"{value:.12g}"), ",f")
