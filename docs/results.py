"""Fill the tables of docs/results.md from the lines of `minichat bench --json`: `python -m docs.results`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minichat.bench.harness import Figure
from minichat.bench.machine import described
from minichat.bench.questions.quick import REFERENCE
from minichat.bench.record import CaseFile, of_newest
from minichat.bench.report import shown

PAGE = Path(__file__).with_suffix(".md")
RESULTS = PAGE.parents[1] / "benchmarks" / "results"
_TABLE = re.compile(
    r"(?P<head><!-- bench (?P<question>\w+)(?: on (?P<gpu>.+?))? -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def files() -> list[Path]:
    """The files with the lines of the page."""
    return [*sorted(RESULTS.glob("bench*.jsonl")), REFERENCE]


def filled(page: str, lines: Sequence[dict[str, Any]]) -> str:
    """The page with its tables from these lines; a table without lines of a clean commit is not changed.

    `bench QUESTION` marks the table of a machine without a GPU, `bench QUESTION on GPU` that of a GPU.
    """

    clean = [line for line in lines if not (line["commit"] or "").endswith("-dirty")]

    def table(found: re.Match[str]) -> str:
        where = found["question"], found["gpu"]
        asked = [line for line in clean if (line["question"], line["machine"]["gpu"]) == where]
        return f"{found['head']}{_table(list(of_newest(asked)))}\n{found['end']}" if asked else found[0]

    return _TABLE.sub(table, page)


def _table(cases: Sequence[tuple[Mapping[str, Any], tuple[Figure, ...]]]) -> str:
    lines = [line for line, _ in cases]
    ablations = lines[0]["question"] == "ablations"
    spread = "range" if all(each.values for _, figures in cases for each in figures) else "quartiles"
    heads = ["technique", "with", "without", "worth", spread, "measured; how it is switched off"]
    rows = [heads if ablations else ["", "median", spread, "samples"]]
    rows.append(["---", *["---:"] * 4, "---"] if ablations else ["---", *["---:"] * 3])
    for line, figures in cases:
        if ablations:
            values = [shown(each) for each in figures]
            rows.append([line["case"], *(each.value for each in values), values[-1].range, line["about"]])
        else:
            rows += [[f"{line['case']}, {each.name}", *shown(each), str(each.samples)] for each in figures]
    return "\n".join([_caption(lines), "", *(f"| {' | '.join(row)} |" for row in rows)])


def _caption(lines: Sequence[Mapping[str, Any]]) -> str:
    machine, model = lines[-1]["machine"], lines[-1]["settings"]["model"]
    loads = [line["machine"]["load"] for line in lines]
    dates = sorted({line["when"][:10] for line in lines})
    return (
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, commit {lines[-1]['commit']}, {model}, "
        f"{described(machine)}, load {min(loads)} to {max(loads)}:"
    )


def main() -> None:
    lines = [line for file in files() for line in CaseFile(file).lines]
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")


if __name__ == "__main__":
    main()
