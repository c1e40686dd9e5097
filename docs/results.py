"""Fill the tables of docs/results.md, and draw its plots: `python -m docs.results`.

From the lines of `minichat bench --json`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from docs.second import agreement, run_of
from minichat.bench.cases import CaseResult
from minichat.bench.harness import Figure
from minichat.bench.machine import described
from minichat.bench.plot import bar_charts
from minichat.bench.questions.quick import REFERENCE
from minichat.bench.record import CaseFile, of_newest
from minichat.bench.report import digits, shown
from minichat.charts.bars import bars_svg

PAGE = Path(__file__).with_suffix(".md")
PICTURES = PAGE.parent / "pictures"
RESULTS = PAGE.parents[1] / "benchmarks" / "results"
_TABLE = re.compile(
    r"(?P<head><!-- bench (?P<question>\w+)(?: on (?P<gpu>.+?))? -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)
_SECOND = re.compile(r"(?P<head><!-- second runs -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def files() -> list[Path]:
    """The files with the lines of the page."""
    return [*sorted(RESULTS.glob("bench*.jsonl")), REFERENCE]


def filled(page: str, lines: Sequence[dict[str, Any]]) -> str:
    """The page with its tables from these lines; a table without lines of a clean commit is not changed.

    `bench QUESTION` marks the table of a machine without a GPU, `bench QUESTION on GPU` that of a GPU.
    """

    def table(found: re.Match[str]) -> str:
        asked = _clean(lines, found["question"], found["gpu"])
        return f"{found['head']}{_table(asked)}\n{found['end']}" if asked else found[0]

    return _TABLE.sub(table, page)


def compared(page: str, results: Path = RESULTS) -> str:
    """The page with its table of second runs, from the `again*.jsonl` beside the `bench*.jsonl`."""
    rows = [row for again in sorted(results.glob("again*.jsonl")) for row in _agreements(again)]
    heads = ["question", "commit, machine", "first", "second", "agree", "outside: the second / the first"]
    lines = (heads, ["---", "---", "---:", "---:", "---:", "---"], *rows)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return _SECOND.sub(lambda found: f"{found['head']}{table}\n{found['end']}" if rows else found[0], page)


def _agreements(again: Path) -> Iterator[list[str]]:
    """A row for each question of a second run: it is of one commit."""
    second = run_of(str(again))
    commit = next(iter(second.values()))[0]["commit"]
    first = run_of(f"{again.with_name(again.name.replace('again', 'bench'))}@{commit}")
    for question in [each for each in first if each in second]:
        lines = first[question], second[question]
        _, found = agreement(*lines)
        days = [_days(each) for each in lines]
        outside = [f"{each.name}: {digits(each.ratio)}" for each in found if not each.agrees]
        agreeing = f"{len(found) - len(outside)} of {len(found)}"
        where = f"{commit}, {described(lines[1][-1]['machine'])}"
        yield [question, where, *days, agreeing, "; ".join(outside)]


def _days(lines: Sequence[Mapping[str, Any]]) -> str:
    """When sittings were, such as `28 and 29 November`."""
    days = [date.fromisoformat(each) for each in sorted({line["when"][:10] for line in lines})]
    months = [f" {each:%B}" if each.month != after.month else "" for each, after in pairwise(days)]
    return " and ".join(
        f"{each:%-d}{month}" for each, month in zip(days, [*months, f" {days[-1]:%B}"], strict=True)
    )


def drawn(page: str, lines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The plots that the page shows, by their file: `bench-QUESTION.svg` or `bench-QUESTION-GPU.svg`."""
    found = {}
    for name, question, gpu in re.findall(r"\(pictures/(bench-(\w+?)(?:-(\w+))?\.svg)\)", page):
        results = _plotted(list(of_newest(_clean(lines, question, f"NVIDIA {gpu}" if gpu else None))))
        found[name] = bars_svg(bar_charts(question, list(results)))
    return found


def _plotted(cases: Sequence[tuple[Mapping[str, Any], tuple[Figure, ...]]]) -> Iterator[CaseResult]:
    """What fits a picture: of techniques only what they are worth, and no figures of HTTP."""
    for line, figures in cases:
        if not line["case"].startswith("HTTP"):
            yield CaseResult(line["case"], "", figures[-1:] if line["question"] == "ablations" else figures)


def _clean(lines: Sequence[dict[str, Any]], question: str, gpu: str | None) -> list[dict[str, Any]]:
    """The lines of the newest clean commit, of all sittings."""
    asked = [line for line in lines if (line["question"], line["machine"]["gpu"]) == (question, gpu)]
    clean = [line for line in asked if not (line["commit"] or "").endswith("-dirty")]
    return [line for line in clean if line["commit"] == clean[-1]["commit"]]


def _table(lines: Sequence[dict[str, Any]]) -> str:
    cases = list(of_newest(lines))
    ablations = lines[0]["question"] == "ablations"
    spread = "spread" if all(each.values for _, figures in cases for each in figures) else "quartiles"
    heads = ["technique", "with", "without", "worth", spread, "measured; how it is switched off"]
    rows = [heads if ablations else ["", "median", spread, "samples"]]
    rows.append(["---", *["---:"] * 4, "---"] if ablations else ["---", *["---:"] * 3])
    for line, figures in cases:
        if ablations:
            values = [shown(each) for each in figures]
            rows.append([line["case"], *(each.value for each in values), values[-1].spread, line["about"]])
        else:
            rows += [[f"{line['case']}, {each.name}", *shown(each), str(each.samples)] for each in figures]
    return "\n".join(
        [
            _caption(lines, [each for _, figures in cases for each in figures]),
            "",
            *(f"| {' | '.join(row)} |" for row in rows),
        ]
    )


def _caption(lines: Sequence[Mapping[str, Any]], figures: Sequence[Figure]) -> str:
    machine, model = lines[-1]["machine"], lines[-1]["settings"]["model"]
    loads = [line["machine"]["load"] for line in lines]
    dates = sorted({line["when"][:10] for line in lines})
    return (
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, commit {lines[-1]['commit']}, {model}, "
        f"{described(machine)}, load {min(loads)} to {max(loads)}{_drift(figures)}:"
    )


def _drift(figures: Sequence[Figure]) -> str:
    """The drift of each unit, which is part of the spread."""
    units: dict[str, dict[str, None]] = {}
    for each in figures:
        if each.drift and each.median:
            units.setdefault(f"{100 * each.drift:.0f} %", {})[each.unit] = None
    found = ", ".join(f"{drift} ({', '.join(each)})" for drift, each in units.items())
    return f", drift {found}" if found else ""


def main() -> None:
    lines = [line for file in files() for line in CaseFile(file).lines]
    page = compared(filled(PAGE.read_text(encoding="utf-8"), lines))
    PAGE.write_text(page, encoding="utf-8")
    for name, picture in drawn(page, lines).items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
