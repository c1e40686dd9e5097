"""Charts of bars with their spread, as SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

from minichat.charts.axes import Axis, axis

_NAMES, _WIDTH, _VALUES = 360, 460, 130  # columns: of the names, of the bars, of the numbers
_LINE, _TOP, _BELOW = 22, 34, 44
_COLOR, _SPREAD, _INK = "#3b6fb6", "#1b2f4d", "#222222"


class SpreadBar(NamedTuple):
    """A value with the range around it; `text` is the value as it is read."""

    name: str
    value: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class BarChart:
    title: str
    unit: str
    bars: tuple[SpreadBar, ...]


def bars_svg(charts: Sequence[BarChart]) -> str:
    """The charts one below the other."""
    width = _NAMES + _WIDTH + _VALUES
    panels, top = [], 0
    for chart in charts:
        panels.append(f'<g transform="translate({_NAMES} {top + _TOP})">\n{_panel(chart)}\n</g>')
        top += _TOP + _LINE * len(chart.bars) + _BELOW
    drawn = "\n".join(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'viewBox="0 0 {width} {top}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{top}" fill="#ffffff"/>\n{drawn}\n</svg>\n'
    )


def _panel(chart: BarChart) -> str:
    """One chart, with the origin at the upper end of its axis."""
    across = axis([each for bar in chart.bars for each in (bar.value, bar.high)])
    height = _LINE * len(chart.bars)
    lines = [_words(0, -14, f"{chart.title}, {chart.unit}", bold=True)]
    for at, bar in enumerate(chart.bars):
        lines += _bar(bar, at * _LINE, across)
    lines.append(f'<path d="M0 0V{height}H{_WIDTH}" fill="none" stroke="{_INK}"/>')
    for share, label in across.ticks:
        lines.append(f'<path d="M{share * _WIDTH:.1f} {height}v5" stroke="{_INK}"/>')
        lines.append(_words(share * _WIDTH, height + 18, label, "middle"))
    return "\n".join(lines)


def _bar(bar: SpreadBar, top: float, across: Axis) -> Iterator[str]:
    end, low, high = (_WIDTH * max(0.0, across.place(each)) for each in (bar.value, bar.low, bar.high))
    middle = top + _LINE / 2
    yield f'<rect x="0" y="{top + 4}" width="{end:.1f}" height="{_LINE - 8}" fill="{_COLOR}"/>'
    yield f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="{_SPREAD}" stroke-width="3"/>'
    yield _words(-8, middle + 4, bar.name, "end")
    yield _words(max(end, high) + 8, middle + 4, bar.text)


def _words(x: float, y: float, text: str, anchor: str = "start", *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{_INK}"{weight}>{escape(text)}</text>'
