"""One page in two minutes: what this machine can do, beside the machines of the docs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from engine.serving.engine import Engine
from minichat.bench.cases import Case, CaseResult
from minichat.bench.harness import Bench, Figure
from minichat.bench.machine import described, machine
from minichat.bench.questions.memory import note_memory
from minichat.bench.record import CaseFile
from minichat.bench.report import digits, shown
from minichat.bench.setup import Setup
from minichat.bench.shapes import SHAPES
from minichat.bench.traffic import ask, seconds

SITTINGS = 1
BUDGET = 120.0  # seconds, without --json and --only; on two idle cores it takes half of that
_SHAPES = {False: "335M", True: "0.6B"}  # on a CPU, on a GPU
_AFTER = 2  # tokens after a long prompt
_SHORT = 16  # tokens; the time of short replies is subtracted from that of long ones
# Settings that a case says about itself, or that change nothing here. The others are the engine's.
_OTHERS = ("model", "prompt", "reply", "requests", "trace", "limits", "price", "threads")
REFERENCE = Path(str(files("minichat.bench"))) / "reference.jsonl"


def cases(setup: Setup) -> Iterator[Case]:
    prompt, reply, requests = setup.sizes
    yield Case("device", partial(_device, setup), "its memory read, and products as the layers multiply")
    name = setup.settings["model"]
    for rows in setup.rows_or((1, 8), (1, 32, 256)):
        about = f"{name}, prompts of {prompt} tokens, replies of {reply}"
        yield Case(f"{rows} at once", partial(_at_once, setup, rows), about)
    long = min(4 * prompt, setup.most - _AFTER)
    yield Case("long prompt", partial(_prompt, setup, long), f"{name}, {long} tokens, until the first token")
    yield Case("mixed lengths", partial(_mixed, setup), f"{name}, {requests} requests")
    yield Case("memory", partial(_memory, setup), name)
    if not setup.shape:
        shaped = _Shaped(setup)
        for rows in setup.rows_or((1,), (1, 32, 256)):
            about = f"a step of the {shaped.shape} shape, {'' if setup.gpu else 'one thread, '}random weights"
            yield Case(f"{shaped.shape}, {rows} at once", partial(shaped.step, rows), about)


def _device(setup: Setup, bench: Bench) -> None:
    speeds = setup.engine().runner.speeds()
    bench.note("reads weights at", speeds.read / 1e9, "GB/s")
    bench.note("multiplies at", speeds.multiply / 1e9, "GFLOP/s")


def _at_once(setup: Setup, rows: int, bench: Bench) -> None:
    engine, ids = setup.engine(), setup.ids()
    prompt, reply, _ = setup.sizes

    def call() -> dict[str, float]:
        readers = [ask(engine, ids, prompt, reply) for _ in range(rows)]
        spent = seconds(engine, readers)
        return {"output": rows * reply / spent, "first token": max(each.ttft for each in readers)}

    bench.observe({"output": "tok/s", "first token": "s"}, call)


def _prompt(setup: Setup, length: int, bench: Bench) -> None:
    engine, ids = setup.engine(), setup.ids()

    def call() -> dict[str, float]:
        reader = ask(engine, ids, length, _AFTER)
        seconds(engine, [reader])
        return {"first token": reader.ttft}

    bench.observe({"first token": "s"}, call)


def _mixed(setup: Setup, bench: Bench) -> None:
    engine, ids, sizes = setup.engine(), setup.ids(), setup.mixed()

    def call() -> float:
        seconds(engine, [ask(engine, ids, size, count) for _, size, count in sizes])
        return sum(count for _, _, count in sizes)

    bench.measure("output", call, unit="tok/s")


def _memory(setup: Setup, bench: Bench) -> None:
    with setup.served() as engine:
        shot = engine.snapshot()
    note_memory(bench, shot)


class _Shaped:
    """A larger model with random weights, started for its first case."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self.shape = setup, _SHAPES[setup.gpu]

    @cached_property
    def _engine(self) -> Engine:
        config = {"threads": None if self._setup.gpu else 1}
        return self._setup.shaped(self.shape, **config)

    def step(self, rows: int, bench: Bench) -> None:
        """(seconds of long replies - seconds of short ones) / the difference; processor time on a CPU."""
        engine, ids = self._engine, self._setup.ids(vocab=SHAPES[self.shape]["vocab_size"])
        prompt, reply, _ = self._setup.sizes
        brief = min(_SHORT, reply // 2)
        clock = time.perf_counter if self._setup.gpu else time.process_time

        def spent(length: int) -> float:
            began = clock()
            seconds(engine, [ask(engine, ids, prompt, length) for _ in range(rows)])
            return clock() - began

        def call() -> dict[str, float]:
            return {"step": (spent(reply) - spent(brief)) / (reply - brief)}

        bench.observe({"step": "s"}, call)


def page(results: Sequence[CaseResult], settings: Mapping[str, Any]) -> Group:
    found = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    found.add_column("")
    for heading in ("this machine", "spread", "the docs", "this / docs"):
        found.add_column(heading, justify="right", no_wrap=True)
    found.add_column("where")
    engine = {name: value for name, value in settings.items() if name not in _OTHERS}
    lines = [each for each in CaseFile(REFERENCE).lines if engine.items() <= each["settings"].items()]
    for result in results:
        if result.why_not:
            found.add_row(result.case, "not measured")
        for figure in result.named:
            found.add_row(figure.name, *shown(figure), *_beside(figure, result, lines))
    here = machine()
    title = f"{described(here)}, load {here['load']}"
    problems = [f" {escape(each.case)}: {escape(each.why_not)}" for each in results if each.why_not]
    return Group(
        f"\n {title}", found, *problems, f" The docs' figures: docs/results.md, from {REFERENCE.name}."
    )


def _beside(figure: Figure, result: CaseResult, lines: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    """The newest figure of the docs for the same case."""
    for line in reversed(lines):
        if (line["case"], line["about"]) == (result.case, result.about):
            for each in (Figure(**stored) for stored in line["figures"]):
                if f"{result.case}, {each.name}" == figure.name and each.median:
                    ratio = digits(figure.median / each.median)
                    return shown(each).value, f"{ratio} x", _where(line)
    return "", "", ""


def _where(line: dict[str, Any]) -> str:
    where = line["machine"]
    return f"{described(where)}, load {where['load']}, {line['when'][:10]}"
