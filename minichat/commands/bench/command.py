"""`minichat bench`: measure the cases of a question, and report them as a table, JSON and SVG."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from engine.api.errors import BadInput, EngineError
from minichat.bench.cases import Case, CaseResult, Measurement, with_drift
from minichat.bench.compare import comparison_table, comparisons, lacking
from minichat.bench.load.http import traced
from minichat.bench.machine import busy, why_unpublished
from minichat.bench.plot import bar_charts
from minichat.bench.record import CaseFile
from minichat.bench.report import table
from minichat.charts.bars import bars_svg
from minichat.commands.bench.arguments import PEERS
from minichat.commands.options import engine_config, failed, picture_file
from minichat.doing import doing

if TYPE_CHECKING:
    from minichat.bench.setup import Setup

_WIDTH = 130  # of a table that is not for a terminal
_OF_ONE_QUESTION: dict[str, tuple[str, object]] = {  # options of one question, and their defaults
    "draft": ("ablations", None),
    "peer": ("peers", []),
    "threads": ("peers", 1),
    "price": ("energy", None),
    "trace": ("throughput", "poisson"),
    "ttft": ("throughput", 0.5),
    "tpot": ("throughput", 0.05),
}


def run(options: argparse.Namespace) -> int:
    try:
        picture = picture_file(options.plot)
        earlier, file = _file(options.compare, must_exist=True), _file(options.json)
        if options.json and (problem := why_unpublished()):
            print(f"minichat: {problem}", file=sys.stderr)
        with _setup(options) as setup, _progress() as progress:
            question = import_module(f"minichat.bench.questions.{options.question}")
            sittings = options.sittings or getattr(question, "SITTINGS", 2)
            measured = Measurement(
                options.question, setup.settings, options.warmup, options.repeats, sittings,
                file=file, only=options.only, progress=progress,
                reset=setup.drop_engines, begin=_announcer(progress),
                budget=inf if options.json or options.only else getattr(question, "BUDGET", inf),
            )  # fmt: skip
            cases = list(question.cases(setup))
            _foretell(measured, cases)
            results = with_drift(list(_reported(measured.results(cases))))
        if not results:
            raise BadInput(f"--only {' '.join(options.only)} matches no case of {options.question}")
        _show(question, results, measured, earlier)
        if picture is not None:
            _save(picture, bars_svg(bar_charts(options.question, results)))
    except EngineError as error:
        return failed(error, options)
    return 1 if any(result.failed for result in results) else 0


def _file(name: str | None, *, must_exist: bool = False) -> CaseFile | None:
    if name is None:
        return None
    path = Path(name)
    if must_exist and not os.path.isfile(path):
        raise BadInput(f"--compare {name}: no such file")
    if not os.path.isdir(path.absolute().parent):
        raise BadInput(f"--json {name}: the folder {path.absolute().parent} does not exist")
    if os.path.isdir(path):
        raise BadInput(f"--json {name} is a folder; it takes the name of a file")
    return CaseFile(path)


@contextmanager
def _setup(options: argparse.Namespace) -> Iterator["Setup"]:
    for name, least in (
        ("warmup", 0),
        ("repeats", 1),
        ("sittings", 1),
        ("prompt", 8),
        ("reply", 4),
        ("requests", 1),
        ("threads", 1),
    ):
        if (value := getattr(options, name)) is not None and value < least:
            raise BadInput(f"--{name} must be at least {least}, got {value}")
    for name in ("ttft", "tpot", "price"):
        if (limit := getattr(options, name)) is not None and not (limit > 0 and isfinite(limit)):
            raise BadInput(f"--{name} must be above 0, got {limit:g}")
    if any(rows < 1 for rows in options.rows):
        raise BadInput(f"--rows must be at least 1, got {min(options.rows)}")
    for name, (question, unused) in _OF_ONE_QUESTION.items():
        if question != options.question and getattr(options, name) != unused:
            raise BadInput(f"--{name} has no effect with {options.question}; it is for {question}")
    if options.trace != "poisson" and not os.path.isfile(options.trace):
        raise BadInput(f"--trace {options.trace}: no such file")
    if options.trace != "poisson":
        traced(Path(options.trace))  # another kind of file is reported before any case
    if options.adapter:
        raise BadInput("bench measures the model without adapters; leave out --adapter")
    if options.shape and options.model != "pocket":
        raise BadInput("--model has no effect with --shape, which has random weights")
    config, peers = engine_config(options), dict(_peer(each) for each in options.peer)
    with doing(f"loading {options.shape or Path(config.model).name or config.model}"):
        from minichat.bench.setup import Setup  # it imports torch

        setup = Setup(
            config=config,
            shape=options.shape or "",
            rows=tuple(options.rows),
            prompt=options.prompt,
            reply=options.reply,
            requests=options.requests,
            trace=options.trace,
            ttft=options.ttft,
            tpot=options.tpot,
            price=options.price,
            threads=options.threads,
            peers=peers,
        )
        setup.ids()  # a model that does not exist is reported before any case
    try:
        yield setup
    finally:
        setup.close()


def _peer(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if name in PEERS and python and not os.path.isfile(python):
        raise BadInput(f"--peer {text}: there is no file {python}")
    if name not in PEERS or not python:
        raise BadInput(f"--peer {text} must be NAME=PYTHON, with a name of {', '.join(PEERS)}")
    return name, python


@contextmanager
def _progress() -> Iterator[Progress]:
    # Refreshed after each call, never from a separate thread during a timed call.
    console = Console(stderr=True)
    if not console.is_terminal:  # a file would get a blank line at the end
        yield Progress(disable=True)
        return
    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        yield progress


def _foretell(measured: Measurement, cases: Sequence[Case]) -> None:
    """Say what comes, if it has a limit of time."""
    if isfinite(measured.budget):
        names = ", ".join(each.name for each in cases if measured.wants(each))
        print(f"minichat: at most about {measured.budget:g} seconds: {names}", file=sys.stderr, flush=True)


def _announcer(progress: Progress) -> Callable[[str], object]:
    """What shows the case that is measured: above the bar of its calls, or as a line if there are none."""
    if progress.disable:
        return lambda what: print(f"measuring {what}", file=sys.stderr, flush=True)
    task = progress.add_task("", total=None)
    return lambda what: progress.update(task, description=escape(f"measuring {what}"), refresh=True)


def _reported(results: Iterator[CaseResult]) -> Iterator[CaseResult]:
    """Report each failure at once."""
    for result in results:
        if result.failed:
            print(f"minichat: {result.case}: {result.why_not}", file=sys.stderr)
        yield result


def _show(question, results: list[CaseResult], run: Measurement, earlier: CaseFile | None) -> None:  # type: ignore[no-untyped-def]
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    if hasattr(question, "page"):
        console.print(question.page(results, run.settings))
    else:
        console.print(table(run.question, [figure for result in results for figure in result.named]))
        for result in results:
            if result.why_not:
                console.print(f" {escape(result.case)}: not measured: {escape(result.why_not)}")
    if earlier is not None:
        if found := list(comparisons(run, results, earlier)):
            console.print(comparison_table(found))
            if note := busy():
                console.print(f" {note}")
        if missing := lacking(results, found):
            console.print(f" {earlier.path} has no figures with the same settings of: {'; '.join(missing)}")


def _save(picture: Path, text: str) -> None:
    try:
        picture.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EngineError(f"cannot write --plot {picture}: {error.strerror or error}") from None
