"""Axes of a chart: positions of numbers, and tick labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor, log10

_SPAN = 10  # if the largest value exceeds the smallest by this factor, the axis is logarithmic
_STEPS = 5  # maximum steps between the ticks of a linear axis


@dataclass(frozen=True, slots=True)
class Axis:
    """`place` maps a number to its position from 0 to 1; `ticks` are such positions with labels.

    The axis starts at zero, so that small differences look small. If that would put small numbers on top of
    each other, it is logarithmic from position `begins` on, with zero separate below.
    """

    place: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]
    begins: float = 0.0


def axis(values: Sequence[float]) -> Axis:
    """An axis that fits all values."""
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
    """The number without an exponent: 0.00001 and 150,000."""
    return format(Decimal(f"{value:.12g}"), ",f")
