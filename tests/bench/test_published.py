"""The figures of an H200 in README and docs are the same everywhere, and from clean commits."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from docs.second import main as second
from minichat.bench.cases import Case
from minichat.bench.machine import commit
from minichat.bench.questions.quick import REFERENCE
from minichat.bench.record import CaseFile
from tests.bench.test_record import measured, noting

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {"README.md": "minichat", "docs/gpu-steps.md": "ours", "docs/results.md": "minichat"}


def lines(name: str) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").open(encoding="utf-8")]


def cells(text: str, column: str) -> Iterator[tuple[str, str]]:
    """The figure and the number of each row of the first table with vLLM's column."""
    table = next(rows for rows in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) if "vLLM 0.26" in rows)
    head, _, *rows = (
        [cell.strip(" *") for cell in row.strip("|\n").split("|")] for row in table.splitlines()
    )
    shape = ""
    for row in rows:
        if found := re.search(r"(0\.6B|8B)", row[0]):
            shape = found[1]
        count = re.search(r"B=(\d+)|\b(\d+) repl", row[0])
        if re.search(r"whole replies|, N\b", row[0]):
            yield f"{shape}, N", row[head.index(column)]
        elif count:
            yield f"{shape}, D, B={count[1] or count[2]}", row[head.index(column)]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "column"), PAGES.items())
def test_each_step_is_a_figure_of_a_clean_commit_that_the_page_names(name: str, column: str) -> None:
    text, clean = page(name), [line for line in lines("gpu") if not line["commit"].endswith("-dirty")]
    rows = list(cells(text, column))
    assert len(rows) >= 6
    for figure, shown in rows:
        digits = len(shown.partition(".")[2])
        found = {
            line["commit"]
            for line in clean
            if line["figure"] == figure and f"{line['median']:,.{digits}f}" == shown
        }
        assert any(commit in text for commit in found), f"{figure}: {shown}, {found}"


def test_the_pages_have_the_same_steps() -> None:
    tables = [dict(cells(page(name), column)) for name, column in PAGES.items()]
    for one, other in pairwise(tables):
        both = one.keys() & other.keys()
        assert {key: one[key] for key in both} == {key: other[key] for key in both}


def test_tables_of_bench_are_of_clean_commits() -> None:
    text = page("docs/results.md")
    shown = re.findall(r"^20\d\d-\d\d-\d\d.*, commit (\S+),", text, re.MULTILINE)
    assert len(shown) >= 10 and not [commit for commit in shown if commit.endswith("-dirty")]
    assert REFERENCE.exists() and "-dirty" not in REFERENCE.read_text(encoding="utf-8")


def test_what_a_technique_is_worth_is_that_of_its_table() -> None:
    """The line of mini-sglang repeats two rows of the table of ablations on an H200."""
    text = page("docs/results.md")
    table = text.partition("<!-- bench ablations on NVIDIA H200 -->")[2].partition("<!-- end -->")[0]
    [(overlap, prefix)] = re.findall(
        r"mini-sglang .*overlap ([\d.]+) times, prefix cache ([\d.]+) times", text
    )
    for name, times in (("overlap", overlap), ("prefix cache", prefix)):
        [row] = re.findall(rf"^\| {name} \|.*", table, re.MULTILINE)
        assert row.split("|")[4].strip() == f"{times} x"


def test_a_second_run_is_compared_with_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    cases = Case("a", noting(1, 2, 4)), Case("b", noting(1, 2))
    measured(CaseFile(first), *cases)
    measured(CaseFile(again), Case("a", noting(2, 3, 9)), Case("b", noting(5)), Case("c", noting(1)))
    assert second([f"{first}@{commit()}", str(again)]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 figures agree: within the spread of the earlier run. Outside: b, time." in said
    assert said.startswith("speed, 20") and f" at {commit()} on " in said
    assert "\n  b, time: 1.5 s (0.952 .. 2.1), now 5 s (5 .. 5)\n" in said, "what differs, with its figures"
    assert second([f"{first}@abc", str(again)]) == 1, "no lines of that commit"
    with pytest.raises(SystemExit):
        second([str(tmp_path / "none"), str(again)])
    assert "none: no such file" in capsys.readouterr().err


def test_no_more_figures_are_from_commits_with_changes() -> None:
    """The table may only shrink: figures are measured on clean commits."""
    listed = re.findall(r"^\| `(\w+)` \| (\d+) \|$", page("benchmarks/results/README.md"), re.MULTILINE)
    allowed = {name: int(count) for name, count in listed}
    for file in sorted(RESULTS.glob("*.jsonl")):
        commits: dict[str, list[str]] = {}
        for line in lines(file.stem):
            if "figure" in line:
                commits.setdefault(line["figure"], []).append(line["commit"] or "-dirty")
        lacking = [name for name, found in commits.items() if all(each.endswith("-dirty") for each in found)]
        assert len(lacking) <= allowed.get(file.stem, 0), f"{file.name}: {lacking}"
