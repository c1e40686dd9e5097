"""The spread in which another run is expected: of the samples, and of the drift between sittings."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from minichat.bench.cases import Case, Measurement, with_drift
from minichat.bench.compare import compared, comparison_table, comparisons, summary
from minichat.bench.drift import drifting
from minichat.bench.harness import Bench, Figure
from minichat.bench.record import CaseFile, of_newest
from minichat.bench.report import table


def figure(name: str, *sittings: tuple[float, ...], unit: str = "s") -> Figure:
    first, *others = (Figure.of(name, unit, values) for values in sittings)
    for other in others:
        first = first.joined(other)
    return first


def drifts(*figures: Figure) -> list[float]:
    return [each.drift for each in drifting([figures])[0]]


def test_a_figure_has_twice_the_usual_drift_of_its_unit() -> None:
    """Two sittings of one figure may agree by chance."""
    times = figure("a", (1, 1), (1, 1)), figure("b", (1, 1), (1.1, 1.1)), figure("c", (1, 1), (1.5, 1.5))
    rate, other_rate = figure("d", (100,), (100,), unit="tok/s"), figure("e", (10,), (13,), unit="req/s")
    assert drifts(*times) == pytest.approx([0.2, 0.2, 0.2])
    assert drifts(*times, rate) == pytest.approx([0.2, 0.2, 0.2, 0.05])
    assert drifts(rate, other_rate) == pytest.approx([0.3, 0.3]), "all rates are one kind"
    assert drifts(times[1], figure("not in the second sitting", (1, 1))) == pytest.approx([0.2, 0.2])


def test_the_table_says_how_far_its_spreads_are_beyond_the_samples() -> None:
    """Else they are taken for measured values."""

    def printed(*figures: Figure) -> str:
        Console(file=(out := StringIO()), width=90).print(table("t", drifting([figures])[0]))
        return out.getvalue()

    times = figure("a", (1, 1), (1.1, 1.1))
    assert "\nspread: the samples, and 20 % beyond them" in printed(times)
    assert "5 to 20 % beyond them" in printed(times, figure("b", (7, 8), unit="tok/s"))
    assert "beyond" not in printed(figure("blocks", (535,), unit="blocks"))


def test_what_is_counted_once_has_its_exact_range_and_rounds_of_one_sitting_the_least_drift() -> None:
    counted = figure("blocks", (535,), unit="blocks")
    assert drifts(counted, figure("a", (1, 2, 4))) == [0, 0.05]
    assert not compared("a", figure("blocks", (550,), unit="blocks"), counted).agrees


def test_what_is_the_same_in_most_sittings_has_no_drift() -> None:
    """Bytes of weights are exact, and the peak of a process is not."""
    peak = figure("peak", (300,), (303,), unit="B")
    [(weights, _, measured)] = drifting([(*2 * [figure("weights", (100,), (100,), unit="B")], peak)])
    assert not compared("weights", figure("weights", (102,), unit="B"), weights).agrees
    assert compared("peak", figure("peak", (305,), unit="B"), measured).agrees
    assert not compared("peak", figure("peak", (307,), unit="B"), measured).agrees


@pytest.mark.parametrize(
    ("now", "verdict"), [(0.94, "differs"), (0.96, "agrees"), (1.045, "agrees"), (1.08, "differs")]
)
def test_a_change_of_a_steady_figure_is_seen(now: float, verdict: str) -> None:
    [(then,)] = drifting([(figure("a", (1, 1), (1.001, 1.001)),)])
    assert compared("a", figure("a", (now, now, now)), then).verdict == verdict


@pytest.mark.parametrize(
    ("then", "now", "unit", "verdict"),
    [
        ((1,), (2,), "s", "one sample"),
        ((1,), (2, 3), "s", "one sample"),
        ((1,), (1.005,), "s", "agrees"),
        ((1,), (0.5, 2, 3), "s", "overlaps"),
        ((1, 1.1), (2,), "s", "differs"),
        ((5,), (7,), "blocks", "differs"),
    ],
)
def test_one_sample_has_no_spread_unless_it_is_counted(
    then: tuple[float, ...], now: tuple[float, ...], unit: str, verdict: str
) -> None:
    one = compared("a", figure("a", now, unit=unit), figure("a", then, unit=unit))
    assert one.verdict == verdict
    told = " Of one sample, which has no spread: a." if verdict == "one sample" else ""
    assert summary([one]).endswith(told) and ("Of one sample" in summary([one])) == bool(told)
    out = StringIO()
    Console(file=out, width=120).print(comparison_table([one]))
    assert verdict in out.getvalue()
    assert (" .. " in out.getvalue()) == (len(then) + len(now) > 2)


def test_zero_and_negative_figures_have_a_spread() -> None:
    [(none, below)] = drifting([(figure("failed", (0,), (0,)), figure("slope", (-2,), (-1,)))])
    assert (none.least, none.most) == (0, 0)
    assert below.least < -2 and -1 < below.most < 0


def test_the_spread_is_of_all_cases_of_a_question_in_a_file_and_in_a_table(tmp_path: Path) -> None:
    def noting(*values: float) -> Case:
        left = list(values)
        return Case(f"case {values[0]:g}", lambda bench: _note(bench, left.pop(0)))

    path = tmp_path / "found.jsonl"
    run = Measurement("speed", {}, 0, 1, 2, CaseFile(path))
    results = with_drift(list(run.results([noting(1, 1), noting(2, 2.4), noting(3, 3.9)])))
    shown = [each.figures[0].drift for each in results]
    assert shown == pytest.approx([0.4, 0.4, 0.4])
    stored = [figures[0].drift for _, figures in of_newest(CaseFile(path).lines)]
    assert stored == shown and "drift" not in path.read_text()
    [found, *_] = comparisons(run, results, CaseFile(path))
    assert (found.then.drift, found.agrees) == (shown[0], True), "with the drift of the cases beside it"


def _note(bench: Bench, value: float) -> None:
    bench.note("time", value, "s")
