"""Charts of points, and their rendering in plain characters for a terminal."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from minichat.charts.axes import Axis, axis

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_COLUMNS, _LINES = 56, 13


class Point(NamedTuple):
    name: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    across: str
    upwards: str
    points: tuple[Point, ...]

    @property
    def axes(self) -> tuple[Axis, Axis]:
        return axis([point.x for point in self.points]), axis([point.y for point in self.points])


def drawn(chart: Chart) -> str:
    """Render in plain characters: a letter per point, in the nearest free cell, and a legend."""
    across, upwards = chart.axes
    side, edge = [""] * _LINES, ["|"] * _LINES
    for share, label in upwards.ticks:
        side[_line(share)] = label
    for line in range(_line(upwards.begins) + 1, _LINES):
        edge[line] = ":"  # the part that holds only zero
    width = max(map(len, side))
    frame = [f"{label:>{width}} {each}" for label, each in zip(side, edge, strict=True)]
    named = list(zip(_LETTERS, chart.points, strict=False))
    grid = [[" "] * _COLUMNS for _ in range(_LINES)]
    for letter, point in named:
        _put(letter, grid[_line(upwards.place(point.y))], _column(across.place(point.x)))
    below = [f"+{'-' * _COLUMNS}", f" {_foot(across)}", f" {chart.across:^{_COLUMNS}}"]
    lines = [
        *(label + "".join(row) for label, row in zip(frame, grid, strict=True)),
        *(f"{'':{width}} {each}" for each in below),
    ]
    legend = (f"{letter} {point.name}" for letter, point in named)
    beside = zip_longest(lines, legend, fillvalue="")
    return "\n".join(
        [
            f"{chart.title} (y: {chart.upwards}; lower is closer to the original model)",
            *(f"{line:{width + _COLUMNS + 4}}{name}".rstrip() for line, name in beside),
        ]
    )


def _put(letter: str, row: list[str], column: int) -> None:
    free = (at for at, each in enumerate(row) if each == " ")
    row[min(free, key=lambda at: (abs(at - column), -at))] = letter


def _line(share: float) -> int:
    return round((1 - share) * (_LINES - 1))


def _column(share: float) -> int:
    return round(share * (_COLUMNS - 1))


def _foot(across: Axis) -> str:
    """The tick labels below their positions; labels that do not fit are dropped."""
    foot = ""
    for share, label in across.ticks:
        at = min(max(_column(share) - len(label) // 2, 0), _COLUMNS - len(label))
        if at > len(foot) or not foot:
            foot = f"{foot:{at}}{label}"
    return foot
