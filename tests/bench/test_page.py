"""docs/results.md shows the newest lines of the files that it names."""

import json
from pathlib import Path
from typing import Any

from docs.results import PAGE, PICTURES, RESULTS, compared, drawn, files, filled
from minichat.bench.record import CaseFile
from minichat.commands.bench.arguments import QUESTIONS

LINE = {
    "question": "memory",
    "case": "a",
    "commit": "c",
    "when": "2026-01-02T00:00:00+00:00",
    "settings": {"model": "pocket"},
    "machine": {"cpu": "EPYC", "gpu": None, "cores": 2, "load": 0.5},
    "figures": [{"name": "time", "unit": "s", "median": 0.002, "low": 0.001, "high": 0.003, "samples": 3}],
}


def test_the_page_is_up_to_date() -> None:
    """If this fails, run `python -m docs.results`."""
    lines = [line for file in files() for line in CaseFile(file).lines]
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, lines) == compared(page) == page
    assert {line["question"] for line in lines} <= set(QUESTIONS)
    shown = drawn(page, lines)
    assert len(shown) >= 8
    for name, picture in shown.items():
        assert picture == (PICTURES / name).read_text(encoding="utf-8"), name


def test_a_table_has_the_newest_clean_commit_only() -> None:
    page = "x\n<!-- bench memory -->\nold\n<!-- end -->\n<!-- bench latency -->\nkept\n<!-- end -->\n"
    older = LINE | {"commit": "b", "case": "gone"}
    again = LINE | {"figures": [LINE["figures"][0] | {"median": 0.004}]}
    dirty = LINE | {"commit": "d-dirty", "case": "gone"}
    new = filled(page, [older, LINE, again, dirty])
    assert new.count("a, time") == 1 and "| a, time | 4 ms | 0.952 .. 3.15 | 3 |" in new
    assert "gone" not in new and "old" not in new and "kept" in new
    assert "2026-01-02, commit c, pocket, EPYC, 2 cores, load 0.5 to 0.5, drift 5 % (s):" in new


def test_a_gpu_has_tables_of_its_own() -> None:
    page = (
        "<!-- bench memory -->\nold\n<!-- end -->\n<!-- bench memory on NVIDIA H200 -->\nnone\n<!-- end -->\n"
    )
    on_gpu = LINE | {"case": "b", "machine": LINE["machine"] | {"gpu": "NVIDIA H200"}}
    cpu, gpu = filled(page, [LINE, on_gpu]).split("<!-- end -->\n")[:2]
    assert "a, time" in cpu and "b, time" not in cpu
    assert "b, time" in gpu and "a, time" not in gpu and "pocket, NVIDIA H200, 2 cores" in gpu
    assert "none" in filled(page, [LINE])


def test_second_runs_are_compared_with_the_first_of_their_commit(tmp_path: Path) -> None:
    def written(name: str, *lines: dict[str, Any]) -> None:
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    day = LINE | {"when": "2026-01-03T00:00:00+00:00"}
    slow = LINE["figures"][0] | {"median": 0.009, "low": 0.008, "high": 0.01}
    first = LINE | {"figures": [LINE["figures"][0] | {"values": [0.001, 0.002, 0.003]}]}
    eve = first | {"when": "2025-12-31T00:00:00+00:00", "sitting": 2}
    written("bench_x.jsonl", first, LINE | {"case": "b"}, eve, LINE | {"commit": "other"})
    written("again_x.jsonl", day, day | {"case": "b", "figures": [slow]})
    page = "x\n<!-- second runs -->\nnone\n<!-- end -->\n"
    new = compared(page, tmp_path)
    assert "none" not in new
    assert (
        "| memory | c, EPYC, 2 cores | 31 December and 2 January | 3 January | 1 of 2 | b, time: 4.5 |" in new
    )
    assert compared(page, tmp_path / "none") == page


def test_the_figures_name_no_path_of_a_machine() -> None:
    for file in (*files(), *RESULTS.glob("again*.jsonl")):
        assert str(Path.home()) not in file.read_text() and "/tmp" not in file.read_text()
