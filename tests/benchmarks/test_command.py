"""`python -m benchmarks` finds, lists, runs and records benchmarks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks.__main__ import discovered, main
from minichat.bench import machine

FAKE = '''"""How long it takes to add.

More of it.
"""


def run(bench, *, upto: int = 10, widths=(1, 2), model: str | None = None, fast=False, other=""):
    bench.measure("sum", lambda: float(sum(range(upto))), unit="sums/s")
    bench.note("seen", [*widths, int(fast)], model or "none")
'''


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Add a fake benchmark to the real ones; return the folder for its figures."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "adding.py").write_text(FAKE)
    (folder / "helper.py").write_text('"""No benchmark: nothing to run."""\n')
    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "benchmarks.adding", raising=False)
    return tmp_path / "results"


def test_lists_each_benchmark_with_its_summary(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert "adding           How long it takes to add.\n" in listed
    assert "helper" not in listed
    assert "harness" not in listed


def test_runs_a_benchmark_and_records_its_figures(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--repeats", "3", "--upto", "100", "--widths", "4", "8", "--model", "pocket", "--fast"]
    for _ in range(2):
        assert main(["adding", "--results", str(results), *options]) == 0
    shown = capsys.readouterr()
    assert "sums/s" in shown.out
    lines = [json.loads(line) for line in (results / "adding.jsonl").read_text().splitlines()]
    assert [line["figure"] for line in lines] == ["sum", "seen"] * 2
    first, second = lines[:2]
    assert first["low"] <= first["median"] <= first["high"]
    assert first["wall_s"] > 0
    assert first["cpu_s"] is not None
    assert first["options"] == {
        "warmup": 2,
        "repeats": 3,
        "upto": 100,
        "widths": [4, 8],
        "model": "pocket",
        "fast": True,
        "other": "",
    }
    assert first["machine"]["cpu"]
    assert first["machine"]["cores"] >= 1
    assert first["versions"]["python"] == sys.version.split()[0]
    assert (second["unit"], second["median"], second["samples"]) == ("pocket", 4, 3)


@pytest.mark.parametrize(("commit", "said"), [("abc-dirty", True), ("abc", False), (None, False)])
def test_uncommitted_changes_are_reported(
    results: Path,
    commit: str | None,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(machine, "commit", lambda: commit)
    for words, expected in (([], said), (["--no-save"], False)):
        assert main(["adding", "--results", str(results), "--repeats", "1", *words]) == 0
        assert ("uncommitted changes" in capsys.readouterr().err) == expected


def test_a_run_is_compared_with_an_earlier_one(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["adding", "--results", str(results), "--repeats", "1", "--compare"]
    assert main(words) == 0
    assert "no earlier figures with these options" in capsys.readouterr().out
    file = results / "adding.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["options"].pop("fast")  # as if the option had not existed
        line["values"] = 1e-9, 1e9
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(words) == 0
    assert "2 of 2 figures agree:" in capsys.readouterr().out
    assert main([*words, "--fast"]) == 0
    assert "no earlier figures" in capsys.readouterr().out


def test_no_save_records_nothing(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adding", "--results", str(results), "--repeats", "1", "--no-save"]) == 0
    assert "sum" in capsys.readouterr().out
    assert not results.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["subtracting"], "unknown benchmark 'subtracting'"),
        (["--fast"], "--fast"),
        (["adding", "--upto", "many"], "--upto"),
        (["adding", "--repeats", "0"], "--repeats 0"),
    ],
)
def test_bad_usage_is_reported(
    results: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_every_benchmark_has_a_summary() -> None:
    assert [name for name, benchmark in discovered().items() if not benchmark.line] == []


def test_listing_does_not_import_torch(root: Path) -> None:
    """So listing is fast and works without torch."""
    program = "import sys; from benchmarks.__main__ import main; main([]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True).returncode == 0


def test_half_a_line_of_a_killed_run_costs_no_other_figure(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adding", "--warmup", "0", "--repeats", "1", "--results", str(results)]
    main(words)
    file = results / "adding.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    main([*words, "--compare"])
    figures = [json.loads(line)["figure"] for line in file.read_text().splitlines()]
    assert figures == ["sum", "sum", "seen"]
    assert file.read_bytes().startswith(whole.splitlines(keepends=True)[0])


def test_another_tree_is_recorded_by_its_commit(results: Path) -> None:
    assert main(["adding", "--results", str(results), "--repeats", "1", "--other", str(machine.ROOT)]) == 0
    lines = [json.loads(line) for line in (results / "adding.jsonl").read_text().splitlines()]
    assert [line["options"]["other"] for line in lines] == [machine.commit()] * 2
    assert str(machine.ROOT) not in json.dumps(lines)
