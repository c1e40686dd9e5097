"""The file of finished cases: what it keeps when a process is killed, and what is not measured again."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from engine.api.errors import BadInput
from minichat.bench.cases import Case, CaseFailed, CaseResult, Measurement
from minichat.bench.compare import compared, comparison_table, comparisons, lacking, summary
from minichat.bench.harness import Bench, Figure
from minichat.bench.machine import commit, identity
from minichat.bench.record import CaseFile
from minichat.cli import main
from tests.waiting import becomes

SIZES = [
    "--prompt",
    "8",
    "--reply",
    "8",
    "--warmup",
    "0",
    "--repeats",
    "1",
    "--sittings",
    "1",
    "--device",
    "cpu",
]


def noting(*values: float, unit: str = "s") -> Callable[[Bench], None]:
    def run(bench: Bench) -> None:
        bench.note("time", values, unit)

    return run


def measured(file: CaseFile | None, *cases: Case, **settings: Any) -> list[CaseResult]:
    return list(Measurement("speed", settings, 0, 1, file=file).results(cases))


def test_a_finished_case_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    first = measured(CaseFile(path), Case("a", noting(1, 2, 4)), Case("b", noting(5)), rows=1)
    again = measured(CaseFile(path), Case("a", noting(9)), Case("c", noting(6)), rows=1)
    assert again[0] == first[0]
    other = measured(CaseFile(path), Case("a", noting(9)), rows=2)
    assert [each.figures[0].median for each in (*again, *other)] == [2, 6, 9]
    assert [json.loads(line)["case"] for line in path.read_text().splitlines()] == ["a", "b", "c", "a"]


def test_half_a_line_is_dropped_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    measured(CaseFile(path), Case("a", noting(1)), Case("b", noting(2)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert [line["case"] for line in CaseFile(path).lines] == ["a"]
    results = measured(CaseFile(path), Case("a", noting(9)), Case("b", noting(3)))
    assert [each.figures[0].median for each in results] == [1, 3]
    assert [line["figures"][0]["median"] for line in CaseFile(path).lines] == [1, 3]


@pytest.mark.parametrize("text", ["[1, 2]\n", '{"question": "speed"}\n', "figures\n"])
def test_another_file_is_refused_and_not_changed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"notes.txt, line 1: not a result of minichat bench"):
        CaseFile(path)
    assert path.read_text() == text


def test_a_failed_case_is_not_stored_and_others_continue(tmp_path: Path) -> None:
    def failing(error: Exception) -> Callable[[Bench], None]:
        def run(bench: Bench) -> None:
            bench.note("time", 1.0, "s")
            raise error

        return run

    resets: list[str] = []
    run = Measurement("speed", {}, 0, 1, file=CaseFile(tmp_path / "f"), reset=lambda: resets.append("reset"))
    cases = (
        Case("a", failing(CaseFailed("the server ended"))),
        Case("b", noting(2)),
        Case("c", noting(3), "", "no GPU"),
        Case("d", failing(RuntimeError("out of memory\nTried to allocate"))),
        Case("e", noting(4)),
    )
    assert [(each.why_not, each.failed) for each in run.results(cases)] == [
        ("the server ended", True),
        ("", False),
        ("no GPU", False),
        ("RuntimeError: out of memory", True),
        ("", False),
    ]
    assert [line["case"] for line in CaseFile(tmp_path / "f").lines] == ["b", "e"]
    assert len(resets) == 2


def test_runs_agree_if_the_median_is_in_the_earlier_spread(tmp_path: Path) -> None:
    earlier = CaseFile(tmp_path / "earlier.jsonl")
    then = {"a": (1.0, 1.2, 1.4), "b": (1.0,), "c": (0.0,), "d": (1.0,)}
    measured(earlier, *(Case(name, noting(*values)) for name, values in then.items()))
    run = Measurement("speed", {}, 0, 1)
    cases = (
        Case("a", noting(1.3, 1.5, 1.7)),
        Case("b", noting(2.0)),
        Case("c", noting(0.0)),
        Case("e", noting(1)),
    )
    now = list(run.results(cases))
    found = {each.name: each for each in comparisons(run, now, earlier)}
    assert list(found) == ["a, time", "b, time", "c, time"]
    assert found["a, time"].ratio == pytest.approx(1.25)
    drift = 1.05
    ends = 1.3 / (1.4 * drift), 1.7 / (1.0 / drift)
    assert (found["a, time"].low, found["a, time"].high) == pytest.approx(ends)
    assert [each.verdict for each in found.values()] == ["overlaps", "one sample", "agrees"]
    said = "1 of 3 figures agree: within the spread of the earlier run."
    said += " Only the spreads overlap: a, time. Of one sample, which has no spread: b, time."
    assert summary(list(found.values())) == said
    near = list(comparisons(run, list(run.results([Case("b", noting(1.009, 1.009, 1.2))])), earlier))
    assert [each.agrees for each in near] == [True], "a difference below 1 % is none"
    without_samples = CaseResult("a", "", (Figure("time", "s", 1.55, 1.52, 1.6, 3),))
    assert [each.verdict for each in comparisons(run, [without_samples], earlier)] == ["differs"]


def test_all_cases_are_measured_once_in_each_sitting(tmp_path: Path) -> None:
    """With new engines; one that fails in a sitting has no figures."""
    order: list[str] = []

    def counting(name: str, *values: float) -> Case:
        left = list(values)

        def run(bench: Bench) -> None:
            order.append(name)
            if not left:
                raise CaseFailed("it ended")
            bench.note("time", left.pop(0), "s")

        return Case(name, run)

    said: list[str] = []
    file = CaseFile(tmp_path / "f")
    run = Measurement("speed", {}, 0, 1, 3, file, reset=lambda: order.append("reset"), begin=said.append)
    cases = [
        counting("a", 5, 1, 3),
        counting("b", 7),
        Case("c", noting(1), "", "no GPU"),
        counting("d", 4, 4, 4),
    ]
    found = {each.case: each for each in run.results(cases)}
    assert order == ["a", "b", "d", "reset", "a", "b", "reset", "d", "reset", "a", "d"]
    assert [each[0] for each in said] == [each for each in order if each != "reset"]
    assert (said[0], said[-1]) == ("a (1 of 4, sitting 1 of 3)", "d (2 of 2, sitting 3 of 3)")
    assert {each.case for each in found.values() if not each.figures} == {"b", "c"}
    assert (found["b"].failed, found["b"].why_not) == (True, "it ended")
    [time] = found["a"].figures
    assert (time.median, time.least, time.most, time.samples, time.values) == (3, 1, 5, 3, (5, 1, 3))


def test_a_run_continues_in_the_sitting_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    both = {"warmup": 0, "repeats": 1, "sittings": 2}
    first = Measurement("speed", {}, **both, file=CaseFile(path))
    assert [
        each.figures[0].values for each in first.results([Case("a", noting(1)), Case("b", noting(2))])
    ] == [
        (1, 1),
        (2, 2),
    ]
    lines = path.read_text().splitlines(keepends=True)
    assert [(each["case"], each["sitting"]) for each in map(json.loads, lines)] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
    ]
    path.write_text("".join(lines[:3]))
    again = Measurement("speed", {}, **both, file=CaseFile(path))
    results = list(again.results([Case("a", noting(8)), Case("b", noting(9))]))
    assert [each.figures[0].values for each in results] == [(1, 1), (2, 9)]
    then = Measurement("speed", {}, **both)
    now = list(then.results([Case("b", noting(5))]))
    [compared] = comparisons(then, now, CaseFile(path))
    assert (compared.then.values, compared.agrees) == ((2, 9), True)


def test_sittings_of_another_day_are_added_to_a_run(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    for sittings, value in ((1, 1), (3, 4)):
        run = Measurement("speed", {}, 0, 1, sittings, CaseFile(path))
        [found] = run.results([Case("a", noting(value))])
    assert found.figures[0].values == (1, 4, 4)
    older = [json.loads(line) for line in path.read_text().splitlines()]
    for line in older:  # they named the number
        line["settings"]["sittings"] = 3
    path.write_text("".join(f"{json.dumps(line)}\n" for line in older))
    [found] = Measurement("speed", {}, 0, 1, 4, CaseFile(path)).results([Case("a", noting(8))])
    assert found.figures[0].values == (1, 4, 4, 8)


@pytest.mark.parametrize(
    ("then", "now", "agrees"),
    [
        ((0, 0, 0), (0, 0, 0), True),
        ((0, 0, 0), (2, 2, 2), False),
        ((0, 1, 3), (2, 2, 2), True),
        ((-3, -2, -1), (-2, -2, -2), True),
        ((-3, -2, -1), (1, 2, 3), False),
    ],
)
def test_zeros_and_negative_figures_are_compared_too(
    then: tuple[float, ...], now: tuple[float, ...], agrees: bool
) -> None:
    def figure(low: float, median: float, high: float) -> Figure:
        return Figure("time", "%", median, low, high, 3)

    one = compared("a", figure(*now), figure(*then))
    assert one.agrees == agrees
    out = StringIO()
    Console(file=out, width=120).print(comparison_table([one]))
    assert ("agrees" if agrees else "differs") in out.getvalue()


def test_a_comparison_prefers_this_machine_and_names_another(tmp_path: Path) -> None:
    def elsewhere(value: float) -> str:
        measured(CaseFile(path := tmp_path / "one.jsonl"), Case("a", noting(value, value)))
        line = json.loads(path.read_text())
        path.unlink()
        line["machine"] |= {"cpu": "Z80", "simd": None, "cores": 4, "gpu": None}
        return json.dumps(line) + "\n"

    file, run = tmp_path / "found.jsonl", Measurement("speed", {}, 0, 1)
    results = list(run.results([Case("a", noting(1.0)), Case("b", noting(1.0))]))
    file.write_text(elsewhere(3.0))
    found = list(comparisons(run, results, CaseFile(file)))
    assert summary(found).endswith("Outside: a, time. The earlier run is from another machine: Z80, 4 cores.")
    assert lacking(results, found) == ["b"]
    measured(CaseFile(file), Case("a", noting(1.0)))
    file.write_text(file.read_text() + elsewhere(3.0))
    [mine] = comparisons(run, results, CaseFile(file))
    assert summary([mine]) == "1 of 1 figures agree: within the spread of the earlier run."


def test_a_processor_without_the_same_instructions_is_another_machine() -> None:
    """Virtual machines call theirs `AMD EPYC`, whatever it is."""
    wide = {"cpu": "AMD EPYC", "simd": "AVX512", "cores": 2, "gpu": None}
    assert identity(wide) != identity(wide | {"simd": "AVX2"})
    gpu = wide | {"gpu": "NVIDIA H200"}
    assert identity(gpu) == identity(gpu | {"simd": "AVX2"}) != identity(wide)


def measuring_until_killed(path: str) -> None:
    """The process of the test below: its second case does not end."""
    cases = (Case("a", noting(1)), Case("b", lambda bench: threading.Event().wait()), Case("c", noting(3)))
    measured(CaseFile(Path(path)), *cases)


def test_a_killed_run_loses_only_its_case(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    code = f"from tests.bench.test_record import measuring_until_killed as run; run({str(path)!r})"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        assert becomes(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
    finally:
        child.kill()
    assert child.wait() == -signal.SIGKILL
    [line] = CaseFile(path).lines
    assert (line["case"], line["commit"]) == ("a", commit())
    assert line["machine"]["cores"] == len(os.sched_getaffinity(0))
    results = measured(CaseFile(path), Case("a", noting(9)), Case("b", noting(2)), Case("c", noting(3)))
    assert [each.figures[0].median for each in results] == [1, 2, 3]


@pytest.mark.soak
def test_a_killed_run_keeps_its_finished_cases(tiny: Path, tmp_path: Path) -> None:
    """The second case is far too long. The next run measures neither again."""
    file = tmp_path / "found.jsonl"
    words = ["bench", "throughput", "--model", str(tiny), *SIZES, "--only", "* at once", "--json", str(file)]
    child = subprocess.Popen(
        [sys.executable, "-m", "minichat", *words, "--rows", "2", "--rows", "5000"], stdout=subprocess.DEVNULL
    )
    try:
        assert becomes(lambda: file.exists() and file.read_bytes().endswith(b"\n"))
    finally:
        child.kill()
    assert child.wait() == -signal.SIGKILL
    kept = file.read_bytes()
    [line] = CaseFile(file).lines
    assert line["case"] == "2 at once" and line["figures"][0]["median"] > 0
    assert (line["commit"], line["machine"]["cores"]) == (commit(), len(os.sched_getaffinity(0)))
    assert main([*words, "--rows", "2"]) == 0
    assert file.read_bytes() == kept


def test_a_table_a_plot_and_a_comparison(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "found.jsonl", tmp_path / "memory.svg"
    words = ["bench", "memory", "--model", str(tiny), *SIZES, "--requests", "2", "--only", "paging"]
    assert main([*words, "--json", str(file), "--plot", str(picture)]) == 0
    ran = capsys.readouterr()
    assert "paging, blocks at the peak" in ran.out and ran.err.endswith("measuring paging (1 of 1)\n")
    assert "paging, blocks at the peak" in picture.read_text()
    assert main([*words, "--compare", str(file)]) == 0
    compared = capsys.readouterr().out
    assert compared.count("agrees ") == 5 and "5 of 5 figures agree:" in compared


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["memory", "--plot", "out.png"], "must end in .svg"),
        (["memory", "--compare", "no/such"], "--compare no/such: no such file"),
        (["memory", "--json", "no/such"], "--json no/such: the folder"),
        (["memory", "--only", "nothing"], "--only nothing matches no case of memory"),
        (["memory", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["memory", "--sittings", "0"], "--sittings must be at least 1, got 0"),
        (["memory", "--rows", "0"], "--rows must be at least 1, got 0"),
        (["latency", "--adapter", "a=b"], "bench measures the model without adapters; leave out --adapter"),
        (["latency", "--draft", "pocket"], "--draft has no effect with latency; it is for ablations"),
        (["latency", "--peer", "vllm=/bin/sh"], "--peer has no effect with latency; it is for peers"),
        (["memory", "--threads", "2"], "--threads has no effect with memory; it is for peers"),
        (["throughput", "--trace", "no/such"], "--trace no/such: no such file"),
        (["throughput", "--trace", "README.md"], "README.md is not a trace in Azure's or Mooncake's form"),
        (["energy", "--price", "-1"], "--price must be above 0, got -1"),
        (["energy", "--price", "nan"], "--price must be above 0, got nan"),
        (["throughput", "--ttft", "0"], "--ttft must be above 0, got 0"),
        (["throughput", "--tpot", "inf"], "--tpot must be above 0, got inf"),
        (["peers", "--peer", "vllm"], "--peer vllm must be NAME=PYTHON"),
        (
            ["peers", "--peer", "vlm=/bin/sh"],
            "--peer vlm=/bin/sh must be NAME=PYTHON, with a name of ",
        ),
        (["peers", "--peer", "vllm=/no/python"], "--peer vllm=/no/python: there is no file /no/python"),
        (["speed"], "invalid choice: 'speed'"),
    ],
)
def test_bad_usage_is_refused(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", *words])
    except SystemExit as end:
        code = int(end.code or 0)
    ran = capsys.readouterr()
    assert (code, ran.out) == (2, "")
    assert problem in ran.err
