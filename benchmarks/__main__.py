"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME [options]` runs one.

A benchmark is a file in one of the folders here, with a docstring and a function
`run(bench, *, option=default, ...)`. Each keyword of run() is an option of the command line.
"""

import argparse
import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import benchmarks
from benchmarks.harness import Bench
from benchmarks.report import RESULTS, append, table

Run = Callable[..., None]


@dataclass(frozen=True)
class Benchmark:
    """A file with a run(), and the first line of its docstring."""

    file: Path
    module: str
    line: str


def discovered() -> dict[str, Benchmark]:
    """Every benchmark by its file's name, found without running any of them."""
    found: dict[str, Benchmark] = {}
    for root in map(Path, benchmarks.__path__):
        for file in root.rglob("[!_]*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
                module = ".".join(("benchmarks", *file.relative_to(root).with_suffix("").parts))
                line = (ast.get_docstring(tree) or "").partition("\n")[0]
                assert file.stem not in found, f"{file} and {found[file.stem].file} have one name"
                found[file.stem] = Benchmark(file, module, line)
    return dict(sorted(found.items()))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    known = discovered()
    chooser = argparse.ArgumentParser(prog="python -m benchmarks", usage="%(prog)s [NAME [options]]")
    chooser.add_argument("name", nargs="?", help="without it, they are listed; NAME --help shows its options")
    name = chooser.parse_args(arguments[:1]).name
    if name is None:
        for each, benchmark in known.items():
            print(f"{each:<16} {benchmark.line}")
        return 0
    if name not in known:
        chooser.error(f"there is no benchmark {name!r}, but {', '.join(known) or 'none yet'}")
    run = importlib.import_module(known[name].module).run
    reader = parser(name, known[name].line, run)
    options = vars(reader.parse_args(arguments[1:]))
    if options["warmup"] < 0 or options["repeats"] < 1:
        reader.error(f"--warmup {options['warmup']} --repeats {options['repeats']}: at least 0 and 1")
    carry_out(name, run, options)
    return 0


def parser(name: str, line: str, run: Run) -> argparse.ArgumentParser:
    """The harness' own options, and one for each keyword of run()."""
    built = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=line,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    built.add_argument("--warmup", type=int, default=2, help="rounds that are thrown away")
    built.add_argument("--repeats", type=int, default=7, help="rounds that count")
    built.add_argument("--results", type=Path, default=RESULTS, help="the folder that keeps the figures")
    built.add_argument("--save", action=argparse.BooleanOptionalAction, default=True, help="keep the figures")
    for keyword in inspect.signature(run).parameters.values():
        if keyword.kind is inspect.Parameter.KEYWORD_ONLY:
            add_option(built, keyword.name, keyword.default)
    return built


def add_option(built: argparse.ArgumentParser, name: str, default: Any) -> None:
    """An option of the default's type: a flag of a bool, several values of a tuple, text of None."""
    flag = "--" + name.replace("_", "-")
    if isinstance(default, bool):
        built.add_argument(
            flag, action=argparse.BooleanOptionalAction, default=default, help="of this benchmark"
        )
    elif isinstance(default, tuple):
        built.add_argument(flag, type=type(default[0]), nargs="+", default=default, help="of this benchmark")
    else:
        built.add_argument(
            flag, type=str if default is None else type(default), default=default, help="of this benchmark"
        )


def carry_out(name: str, run: Run, options: dict[str, Any]) -> None:
    warmup, repeats = options.pop("warmup"), options.pop("repeats")
    results, save = options.pop("results"), options.pop("save")
    # It draws when a call has ended, never from a separate thread during a timed call.
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        kept = {"warmup": warmup, "repeats": repeats, **options}
        bench = Bench(
            warmup, repeats, progress, lambda figure: append(name, kept, figure, results) if save else None
        )
        run(bench, **options)
    Console().print(table(name, bench.figures))


if __name__ == "__main__":
    sys.exit(main())
