"""Figures as a table."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from minichat.bench.harness import Figure

SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Shown(NamedTuple):
    """A figure as text, in a readable unit."""

    value: str
    spread: str  # of all samples, with the drift between sittings


def shown(figure: Figure) -> Shown:
    scale, unit = scaled(figure.median, figure.unit)
    samples = f"{digits(figure.least / scale)} .. {digits(figure.most / scale)}"
    return Shown(f"{digits(figure.median / scale)} {unit}", samples)


def table(title: str, figures: Sequence[Figure]) -> Table:
    found = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    found.add_column("figure")
    for heading in ("median", "spread", "cpu/wall", "samples"):
        found.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        found.add_row(*row(figure))
    found.caption, found.caption_justify = _explained(figures), "left"
    return found


def _explained(figures: Sequence[Figure]) -> str | None:
    """What the spread is, if it is wider than the samples."""
    drifts = sorted({round(100 * figure.drift) for figure in figures if figure.drift})
    if not drifts:
        return None
    added = f"{drifts[0]} %" if len(drifts) == 1 else f"{drifts[0]} to {drifts[-1]} %"
    return f"spread: the samples, and {added} beyond them; expect the median of another run within it"


def row(figure: Figure) -> tuple[str, ...]:
    busy = f"{figure.cpu_s / figure.wall_s:.2f}" if figure.wall_s and figure.cpu_s is not None else ""
    return figure.name, *shown(figure), busy, str(figure.samples)


def scaled(value: float, unit: str) -> tuple[float, str]:
    """The scale and name of a readable unit for seconds; other units are unchanged."""
    if unit != "s" and not unit.startswith("s/"):
        return 1.0, unit
    for scale, name in SCALES:
        if abs(value) >= 0.9995 * scale:
            return scale, name + unit[1:]
    return 1.0, unit


def digits(value: float) -> str:
    """Format with three significant digits, but with all digits before the decimal point."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
