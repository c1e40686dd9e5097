"""Points in a frame: in characters for a terminal, and as an SVG of our own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_COLUMNS, _LINES = 56, 9
_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 460, 300, 64, 40, 56  # of one chart's frame, and around it
_COLOURS = ("#3b6fb6", "#c2543d", "#3f8f5b", "#8a5fb0", "#b28a2e", "#4a9aa5", "#a34a76", "#6d6d6d")


class Point(NamedTuple):
    name: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Both axes begin at zero, so that a small difference looks small."""

    title: str
    across: str
    upwards: str
    points: tuple[Point, ...]

    @property
    def most(self) -> tuple[float, float]:
        """The ends of the axes; never zero."""
        return max((p.x for p in self.points), default=0) or 1.0, max(
            (p.y for p in self.points), default=0
        ) or 1.0


def drawn(chart: Chart) -> str:
    """In plain characters: a letter a point, and beside the frame what each stands for; * for several."""
    across, upwards = chart.most
    grid = [[" "] * _COLUMNS for _ in range(_LINES)]
    for letter, point in zip(_LETTERS, chart.points, strict=False):
        line = _LINES - 1 - round(point.y / upwards * (_LINES - 1))
        column = round(point.x / across * (_COLUMNS - 1))
        grid[line][column] = letter if grid[line][column] == " " else "*"
    legend = [f"{letter} {point.name}" for letter, point in zip(_LETTERS, chart.points, strict=False)]
    side = [f"{upwards:.3g}", *[""] * (_LINES - 2), "0"]
    width = max(map(len, side))
    height = max(_LINES, len(legend))
    lines = [f"{chart.title} ({chart.upwards} upwards; lower is nearer to the model)"]
    for at in range(height):
        row = "".join(grid[at]) if at < _LINES else " " * _COLUMNS
        edge = "|" if at < _LINES else " "
        label = side[at] if at < _LINES else ""
        lines.append(f"{label:>{width}} {edge}{row}  {legend[at] if at < len(legend) else ''}".rstrip())
    foot = f"{across:.4g} {chart.across}"
    lines.insert(_LINES + 1, f"{'':>{width}} +{'-' * _COLUMNS}")
    lines.insert(_LINES + 2, f"{'':>{width}} 0{foot:>{_COLUMNS}}")
    return "\n".join(lines)


def svg(charts: Sequence[Chart]) -> str:
    """Side by side, with their names beside the points."""
    each = _LEFT + _WIDTH + 90
    width, height = each * len(charts), _TOP + _HEIGHT + _BELOW
    body = "\n".join(_panel(chart, at * each) for at, chart in enumerate(charts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _panel(chart: Chart, offset: int) -> str:
    left, floor = offset + _LEFT, _TOP + _HEIGHT
    across, upwards = chart.most
    parts = [
        _words(left, _TOP - 16, chart.title, "start", bold=True),
        f'<path d="M{left} {_TOP}V{floor}H{left + _WIDTH}" fill="none" stroke="#222222"/>',
        _words(left + _WIDTH / 2, floor + 40, chart.across, "middle"),
        _words(left - 8, _TOP - 4, chart.upwards, "end"),
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = left + share * _WIDTH, floor - share * _HEIGHT
        parts += [
            f'<path d="M{x:.1f} {floor}v5M{left - 5} {y:.1f}h5" stroke="#222222"/>',
            _words(x, floor + 20, f"{share * across:.3g}", "middle"),
            _words(left - 9, y + 4, f"{share * upwards:.3g}", "end"),
        ]
    taken: list[tuple[float, float]] = []
    for at, point in enumerate(chart.points):
        x, y = left + point.x / across * _WIDTH, floor - point.y / upwards * _HEIGHT
        level = y + 4
        while any(abs(level - other) < 13 and abs(x - where) < 90 for where, other in taken):
            level -= 13  # names of points that lie together stand above each other
        taken.append((x, level))
        colour = _COLOURS[at % len(_COLOURS)]
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>',
            _words(x + 9, level, point.name, "start", colour=colour),
        ]
    return "\n".join(parts)


def _words(x: float, y: float, text: str, anchor: str, *, bold: bool = False, colour: str = "#222222") -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}"{weight}>{escape(text)}</text>'
