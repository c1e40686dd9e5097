"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME [options]` runs one.

A benchmark is a file in one of the folders here, with a docstring and a function
`run(bench, *, option=default, ...)`. Each keyword of run() is an option of the command line. `only` and
`parts` take names of the file's PARTS.
"""

import argparse
import ast
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import benchmarks
from minichat.bench.compare import compared, comparison_table
from minichat.bench.harness import Bench, Figure
from minichat.bench.machine import commit, described, identity, machine, origin, why_unpublished
from minichat.bench.report import table

Run = Callable[..., None]
_CHOOSE = ("only", "parts")  # options that choose figures, and change none
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Benchmark:
    """A file with a run(), and the first line of its docstring."""

    file: Path
    module: str
    line: str


def discovered() -> dict[str, Benchmark]:
    """All benchmarks by file name, found without importing them."""
    found: dict[str, Benchmark] = {}
    for root in map(Path, benchmarks.__path__):
        for file in root.rglob("[!_]*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
                module = ".".join(("benchmarks", *file.relative_to(root).with_suffix("").parts))
                line = (ast.get_docstring(tree) or "").partition("\n")[0]
                assert file.stem not in found, f"{file} and {found[file.stem].file} have the same name"
                found[file.stem] = Benchmark(file, module, line)
    return dict(sorted(found.items()))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    known = discovered()
    chooser = argparse.ArgumentParser(
        prog="python -m benchmarks", usage="%(prog)s [NAME [options]]", allow_abbrev=False
    )
    chooser.add_argument("name", nargs="?", help="a benchmark (NAME --help: its options); default: list all")
    name = chooser.parse_args(arguments[:1]).name
    if name is None:
        for each, benchmark in known.items():
            print(f"{each:<16} {benchmark.line}")
        return 0
    if name not in known:
        chooser.error(f"unknown benchmark {name!r}; choose from {', '.join(known)}")
    run = importlib.import_module(known[name].module).run
    reader = parser(name, known[name].line, run)
    options = vars(reader.parse_args(arguments[1:]))
    if options["warmup"] < 0 or options["repeats"] < 1:
        given = f"--warmup {options['warmup']} --repeats {options['repeats']}"
        reader.error(f"--warmup must be at least 0 and --repeats at least 1, got {given}")
    execute(name, run, options, vars(reader.parse_args([])))
    return 0


def parser(name: str, line: str, run: Run) -> argparse.ArgumentParser:
    """The common options, and one for each keyword argument of run()."""
    built = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=line,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    built.add_argument("--warmup", type=int, default=2, help="rounds that are discarded")
    built.add_argument("--repeats", type=int, default=7, help="rounds that are measured")
    built.add_argument("--results", type=Path, default=RESULTS, help="the folder of the results")
    built.add_argument(
        "--save", action=argparse.BooleanOptionalAction, default=True, help="store the figures"
    )
    built.add_argument(
        "--compare",
        action="store_true",
        help="show the ratio to the newest stored figures with these options",
    )
    for keyword in inspect.signature(run).parameters.values():
        if keyword.kind is inspect.Parameter.KEYWORD_ONLY:
            named = tuple(run.__globals__.get("PARTS", ())) if keyword.name in ("only", "parts") else ()
            add_option(built, keyword.name, keyword.default, named)
    return built


def add_option(built: argparse.ArgumentParser, name: str, default: Any, choices: Sequence[str] = ()) -> None:
    """Add an option of the default's type: a flag for a bool, several values for a tuple, text for None.

    Values must be among `choices`, if there are any.
    """
    flag = "--" + name.replace("_", "-")
    about = f"choose from {', '.join(choices)}" if choices else "for this benchmark"
    checked: dict[str, Any] = {"choices": choices, "metavar": "NAME"} if choices else {}
    if isinstance(default, bool):
        built.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=about)
    elif isinstance(default, tuple):
        built.add_argument(flag, type=type(default[0]), nargs="+", default=default, help=about, **checked)
    else:
        built.add_argument(
            flag, type=str if default is None else type(default), default=default, help=about, **checked
        )


def execute(name: str, run: Run, options: dict[str, Any], usual: Mapping[str, Any]) -> None:
    warmup, repeats = options.pop("warmup"), options.pop("repeats")
    results, save, compare = options.pop("results"), options.pop("save"), options.pop("compare")
    recorded = options | {"other": commit(Path(options["other"]))} if options.get("other") else options
    before = earlier(results / f"{name}.jsonl", recorded, usual) if compare else {}
    if save and (problem := why_unpublished()):
        print(problem, file=sys.stderr)
    # Refreshed after each call, never from a separate thread during a timed call.
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        stored = {"warmup": warmup, "repeats": repeats, **recorded}
        bench = Bench(
            warmup, repeats, progress, lambda figure: append(name, stored, figure, results) if save else None
        )
        run(bench, **options)
    Console().print(table(name, bench.figures))
    if compare:
        found = [
            compared(each.name, each, *before[each.name]) for each in bench.figures if each.name in before
        ]
        Console().print(comparison_table(found) if found else "no earlier figures with these options")


def append(benchmark: str, options: Mapping[str, Any], figure: Figure, folder: Path) -> None:
    line = {
        "benchmark": benchmark,
        "figure": figure.name,
        "unit": figure.unit,
        "median": figure.median,
        "low": figure.low,
        "high": figure.high,
        "samples": figure.samples,
        "wall_s": figure.wall_s,
        "cpu_s": figure.cpu_s,
        "values": figure.values,
        "options": dict(options),
        **origin(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.jsonl"
    whole = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
    with path.open("ab") as file:
        file.truncate(whole)  # what a killed run wrote of a line is dropped
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def earlier(
    file: Path, options: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, tuple[Figure, str]]:
    """The newest figure of each name with these options, and its machine if it is another one.

    Figures of this machine go first. Lines without an option are older than it, and had what is usual.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]  # without half a line of a killed run
    now = {key: json.loads(json.dumps(value)) for key, value in options.items() if key not in _CHOOSE}
    was = {key: json.loads(json.dumps(usual[key])) for key in now}
    here = identity(machine())
    lines.sort(key=lambda line: identity(line["machine"]) == here)
    return {
        line["figure"]: (
            _figure(line),
            "" if identity(line["machine"]) == here else described(line["machine"]),
        )
        for line in lines
        if {key: line["options"].get(key, was[key]) for key in now} == now
    }


def _figure(line: Mapping[str, Any]) -> Figure:
    unit, median, low, high, samples = (line[key] for key in ("unit", "median", "low", "high", "samples"))
    return Figure(line["figure"], unit, median, low, high, samples, values=tuple(line.get("values", ())))


if __name__ == "__main__":
    sys.exit(main())
