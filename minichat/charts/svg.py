"""Render charts as SVG."""

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from minichat.charts.axes import Axis
from minichat.charts.characters import Chart

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 460, 300, 64, 40, 56  # of a chart's frame and its margins
_LETTER, _LETTERING = 7, 13  # width of a letter and height of a line of names
_COLORS = ("#3b6fb6", "#c2543d", "#3f8f5b", "#8a5fb0", "#b28a2e", "#4a9aa5", "#a34a76", "#6d6d6d")

Room = tuple[float, float, float]  # an occupied range: from, to, and line


def svg(charts: Sequence[Chart]) -> str:
    """The charts side by side, with names beside the points."""
    each = _LEFT + _WIDTH + 90
    width, height = each * len(charts), _TOP + _HEIGHT + _BELOW
    panels = "\n".join(
        f'<g transform="translate({at * each + _LEFT} {_TOP})">\n{_panel(chart)}\n</g>'
        for at, chart in enumerate(charts)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{panels}\n</svg>\n'
    )


def _panel(chart: Chart) -> str:
    """One chart, with the origin at its upper left corner."""
    return "\n".join(
        [
            _words(0, -16, chart.title, "start", bold=True),
            _words(_WIDTH / 2, _HEIGHT + 40, chart.across, "middle"),
            _words(-8, -16, chart.upwards, "end"),
            *_frame(*chart.axes),
            *_points(chart),
        ]
    )


def _frame(across: Axis, upwards: Axis) -> Iterator[str]:
    """The frame, dotted where the axis holds only zero."""
    corner, first, lowest = f"0 {_HEIGHT}", across.begins * _WIDTH, (1 - upwards.begins) * _HEIGHT
    yield _line(f"M0 0V{lowest:.1f}M{first:.1f} {_HEIGHT}H{_WIDTH}")
    yield _line(f"M0 {lowest:.1f}L{corner}H{first:.1f}", "2 4")
    for share, label in across.ticks:
        yield _line(f"M{share * _WIDTH:.1f} {_HEIGHT}v5")
        yield _words(share * _WIDTH, _HEIGHT + 20, label, "middle")
    for share, label in upwards.ticks:
        yield _line(f"M-5 {(1 - share) * _HEIGHT:.1f}h5")
        yield _words(-9, (1 - share) * _HEIGHT + 4, label, "end")


def _points(chart: Chart) -> Iterator[str]:
    across, upwards = chart.axes
    places = [(across.place(p.x) * _WIDTH, (1 - upwards.place(p.y)) * _HEIGHT) for p in chart.points]
    taken = [(x - 5, x + 5, y + 4) for x, y in places]
    for at, (point, (x, y)) in enumerate(zip(chart.points, places, strict=True)):
        color = _COLORS[at % len(_COLORS)]
        taken.append(name := _free(x + 9, x + 9 + _LETTER * len(point.name), y + 4, taken))
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{color}"/>'
        yield _words(name[0], name[2], point.name, "start", color=color)


def _free(begin: float, end: float, target: float, taken: Sequence[Room]) -> Room:
    """The free space nearest to the target line and above the axis."""
    lowest = min(target, _HEIGHT - 5)
    lines = (lowest + by * _LETTERING for by in sorted(range(-2 * len(taken), len(taken)), key=abs))
    return next(
        (begin, end, line)
        for line in lines
        if line < _HEIGHT
        and not any(
            begin < right and left < end and abs(line - other) < _LETTERING for left, right, other in taken
        )
    )


def _line(path: str, dashes: str = "none") -> str:
    return f'<path d="{path}" fill="none" stroke="#222222" stroke-dasharray="{dashes}"/>'


def _words(x: float, y: float, text: str, anchor: str, *, bold: bool = False, color: str = "#222222") -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}"{weight}>{escape(text)}</text>'
