"""This run beside an earlier one, with the spread of both."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from minichat.bench.cases import CaseResult, Measurement
from minichat.bench.drift import COUNTED
from minichat.bench.harness import Figure
from minichat.bench.record import CaseFile
from minichat.bench.report import digits, shown

_SAME = 0.01  # a smaller difference is none


@dataclass(frozen=True, slots=True)
class FigureComparison:
    """A figure, now and in the earlier run. `low`, `high`: the ratio between opposite ends of the spreads."""

    name: str
    now: Figure
    then: Figure
    ratio: float
    low: float
    high: float
    elsewhere: str = ""  # the machine of the earlier run, if it is another

    @property
    def agrees(self) -> bool:
        """Whether the median of this run is within the spread of the earlier one, or nearly is."""
        least, most = self._around
        return least <= self.now.median <= most

    @property
    def overlaps(self) -> bool:
        """Whether the spreads of both runs overlap, or nearly do."""
        least, most = self._around
        return self.now.least <= most and self.now.most >= least

    @property
    def verdict(self) -> str:
        if self.agrees or self.overlaps:
            return "agrees" if self.agrees else "overlaps"
        measured_once = self.then.samples == 1 and self.then.unit not in COUNTED
        return "one sample" if measured_once else "differs"

    @property
    def _around(self) -> tuple[float, float]:
        """The spread of the earlier run, with the difference that is none."""
        least, most = self.then.least, self.then.most
        return least - _SAME * abs(least), most + _SAME * abs(most)


def comparisons(
    run: Measurement, results: Sequence[CaseResult], earlier: CaseFile
) -> Iterator[FigureComparison]:
    """The figures that both runs have, measured with the same settings."""
    for result in results:
        figures, elsewhere = earlier.earlier(run.question, result.case, run.all_settings)
        before = {each.name: each for each in figures}
        for now in result.figures:
            then = before.get(now.name)
            if then is not None and then.unit == now.unit:
                yield compared(f"{result.case}, {now.name}", now, then, elsewhere)


def lacking(results: Sequence[CaseResult], found: Sequence[FigureComparison]) -> list[str]:
    """The measured cases that the earlier run does not have with the same settings."""
    names = {each.name for each in found}
    return [
        each.case for each in results if each.figures and names.isdisjoint(one.name for one in each.named)
    ]


def compared(name: str, now: Figure, then: Figure, elsewhere: str = "") -> FigureComparison:
    return FigureComparison(
        name, now, then,
        _ratio(now.median, then.median), _ratio(now.least, then.most), _ratio(now.most, then.least),
        elsewhere,
    )  # fmt: skip


def _ratio(now: float, then: float) -> float:
    if then:
        return now / then
    return 1.0 if now == then else math.inf


def comparison_table(found: Sequence[FigureComparison]) -> Table:
    table = Table(title="compared", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("figure")
    for heading in ("earlier", "now", "ratio", "by the spreads", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        alone = each.now.samples == each.then.samples == 1
        spreads = "none" if alone else f"{digits(each.low)} .. {digits(each.high)}"
        values = (shown(each.then).value, shown(each.now).value, digits(each.ratio), spreads, each.verdict)
        table.add_row(each.name, *values)
    table.caption, table.caption_justify = summary(found), "left"
    return table


def summary(found: Sequence[FigureComparison]) -> str:
    """How many figures agree, those that do not, and another machine by name."""
    kinds = ("overlaps", "differs", "one sample")
    named = {kind: [each.name for each in found if each.verdict == kind] for kind in kinds}
    agreeing = sum(each.agrees for each in found)
    text = f"{agreeing} of {len(found)} figures agree: within the spread of the earlier run."
    if overlapping := named["overlaps"]:
        text += f" Only the spreads overlap: {'; '.join(overlapping)}."
    if differing := named["differs"]:
        text += f" Outside: {'; '.join(differing)}."
    if alone := named["one sample"]:
        text += f" Of one sample, which has no spread: {'; '.join(alone)}."
    if machines := dict.fromkeys(each.elsewhere for each in found if each.elsewhere):
        text += f" The earlier run is from another machine: {'; '.join(machines)}."
    return text
