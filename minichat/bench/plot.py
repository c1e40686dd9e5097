"""The figures of a question as bars, a chart for each unit."""

from collections.abc import Sequence

from minichat.bench.cases import CaseResult
from minichat.bench.harness import Figure
from minichat.bench.report import scaled, shown
from minichat.charts.bars import BarChart, SpreadBar


def bar_charts(question: str, results: Sequence[CaseResult]) -> list[BarChart]:
    by_unit: dict[str, list[Figure]] = {}
    for result in results:
        for figure in result.named:
            by_unit.setdefault(figure.unit, []).append(figure)
    return [_chart(question, figures) for figures in by_unit.values()]


def _chart(question: str, figures: Sequence[Figure]) -> BarChart:
    scale, unit = scaled(max(each.median for each in figures), figures[0].unit)
    bars = [
        SpreadBar(each.name, each.median / scale, each.least / scale, each.most / scale, shown(each).value)
        for each in figures
    ]
    return BarChart(question, unit, tuple(bars))
