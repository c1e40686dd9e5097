"""`minichat quality`: measure the quality and speed of each scheme as a table, JSON or SVG."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from engine.api.errors import BadInput, EngineError
from engine.quality.schemes import SchemePair, choices
from minichat.charts.characters import Chart, Point, drawn
from minichat.charts.svg import svg
from minichat.commands.options import engine_config, failed, picture_file

if TYPE_CHECKING:
    from engine.api.config import EngineConfig
    from engine.quality.measure import QualityRow

SCHEMES = "none,int8,int4,kv-int8,kv-fp8,kv-int4"  # the default of --schemes
_NO_EFFECT = {  # options of the engine, with what they are if they are not given
    "tp": 1,
    "pp": 1,
    "policy": "fcfs",
    **dict.fromkeys(("target_ms", "max_slowdown", "kv_host", "kv_disk")),
}
_HEADS = ("scheme", "perplexity", "KL", "top-1", "MB", "KV B/tok", "load s", "TTFT ms", "tok/s", "x8", "x32")


def run(options: argparse.Namespace) -> int:
    try:
        picture = picture_file(options.plot)
        text = _text(options.text)
        if options.tokens < 2:
            raise BadInput(f"--tokens must be at least 2, got {options.tokens}; use several hundred")
        for flag, given, name in (("quantization", options.quantization, ""), ("kv", options.kv, "kv-")):
            if given != "none":
                scheme = f"--schemes none,{name}{given}"
                raise BadInput(f"--{flag} {given} must be given as a scheme: {scheme}")
        if options.kv_budget is not None:
            raise BadInput(f"--kv-budget {options.kv_budget} must be given as --budgets {options.kv_budget}")
        if options.kv_eviction is not None:
            raise BadInput("--kv-eviction has no effect here: --budgets compares both kinds")
        for name, usual in _NO_EFFECT.items():
            if getattr(options, name) != usual:
                flag = name.replace("_", "-")
                raise BadInput(f"--{flag} has no effect on the quality of a scheme; leave it out")
        if options.adapter:
            raise BadInput("quality measures the model without adapters; leave out --adapter")
        if options.draft:
            raise BadInput("quality measures the model without drafts; leave out --draft")
        config = engine_config(options)
        _say(f"loading {Path(config.model).name or config.model}")
        if options.budgets is not None:
            return _budgets(options, config, text)
        names = SCHEMES if options.schemes is None else options.schemes
        rows, left_out = _measured(options, config, choices(names), text)
    except EngineError as error:
        return failed(error, options)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(table(rows))
        for chart in charts(rows):
            print(f"\n{drawn(chart)}")
    if picture is not None:
        try:
            picture.write_text(svg(charts(rows)), encoding="utf-8")
        except OSError as error:
            return failed(EngineError(f"cannot write --plot {picture}: {error.strerror or error}"))
    return 1 if left_out else 0


def _measured(
    options: argparse.Namespace, config: "EngineConfig", pairs: Sequence[SchemePair], text: str
) -> "tuple[list[QualityRow], bool]":
    from engine.quality.measure import compare, own_text

    left_out: list[str] = []

    def refused(scheme: str, reason: str) -> None:
        left_out.append(scheme)
        print(f"minichat: {scheme} is skipped: {reason}", file=sys.stderr)

    names = [each.name for each in pairs]

    def begun(scheme: str) -> None:
        which = f" ({names.index(scheme) + 1} of {len(names)})" if scheme in names else ", for comparison"
        _measuring(f"{scheme}{which}")

    rows = compare(
        config,
        pairs,
        text or own_text(config.model),
        most=options.tokens,
        speed=not options.no_speed,
        refused=refused,
        begun=begun,
    )
    order = {each.name: at for at, each in enumerate(pairs)}
    return sorted(rows, key=lambda row: order[row.scheme]), bool(left_out)


def _budgets(options: argparse.Namespace, config: "EngineConfig", text: str) -> int:
    """Compare windows and budgets instead of schemes."""
    try:
        budgets = [int(each) for each in options.budgets.split(",")]
    except ValueError:
        raise BadInput(
            f"--budgets must be numbers of tokens, such as 128,256, not {options.budgets}"
        ) from None
    if options.plot is not None:
        raise BadInput("--plot shows schemes; leave out --budgets")
    if options.schemes is not None:
        raise BadInput("--schemes has no effect with --budgets, which replaces it; leave one of them out")
    if options.no_speed:
        raise BadInput("--no-speed has no effect with --budgets, which measures no speed; leave it out")
    from engine.quality.budget import compare_budgets, least_tokens
    from engine.quality.measure import own_text

    if min(budgets) < (least := least_tokens(config)):
        raise BadInput(f"--budgets must be at least {least} tokens, got {min(budgets)}")
    left_out: list[str] = []

    def refused(policy: str, reason: str) -> None:
        left_out.append(policy)
        print(f"minichat: --budgets: {policy} is skipped: {reason}", file=sys.stderr)

    rows = [
        *compare_budgets(
            config,
            budgets,
            text or own_text(config.model),
            most=options.tokens,
            refused=refused,
            begun=_measuring,
        )
    ]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        cells = [
            (each.policy, f"{each.tokens:,}", f"{each.perplexity:.3f}", f"{each.recall:.0%}") for each in rows
        ]
        print(aligned([("policy", "tokens", "perplexity", "recall"), *cells]))
    return 1 if left_out else 0


def _measuring(row: str) -> None:
    _say(f"measuring {row}")


def _say(what: str) -> None:
    """Say what comes next, on a terminal."""
    if sys.stderr.isatty():
        print(f"minichat: {what}", file=sys.stderr)


def _text(name: str | None) -> str:
    """The text of a file; empty: minichat's own text is used."""
    if name is None:
        return ""
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read --text {name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput(f"--text {name} is not UTF-8 text") from None
    if not text.strip():
        raise BadInput(f"--text {name} is empty")
    return text


def table(rows: "list[QualityRow]") -> str:
    return aligned([_HEADS, *(_cells(row) for row in rows)])


def aligned(cells: Sequence[tuple[str, ...]]) -> str:
    """A table; on a narrow terminal its columns are in several, each with the first one."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = get_terminal_size().columns if sys.stdout.isatty() else sum(widths) + 2 * len(widths)
    parts: list[list[int]] = [[]]
    for column in range(1, len(widths)):
        if parts[-1] and widths[0] + sum(2 + widths[each] for each in [*parts[-1], column]) > room:
            parts.append([])
        parts[-1].append(column)
    return "\n\n".join("\n".join(_line(line, widths, part) for line in cells) for part in parts)


def _line(line: tuple[str, ...], widths: Sequence[int], columns: Sequence[int]) -> str:
    first = line[0].strip().ljust(widths[0])
    return "  ".join([first, *(line[each].rjust(widths[each]) for each in columns)]).rstrip()


def _cells(row: "QualityRow") -> tuple[str, ...]:
    def number(value: float | None, digits: int, factor: float = 1.0) -> str:
        return "-" if value is None else f"{value * factor:,.{digits}f}"

    return (
        row.scheme,
        f"{row.perplexity:.3f}",
        f"{row.kl:.5f}",
        f"{row.top1:.2%}",
        f"{row.bytes / 1e6:,.1f}",
        f"{row.kv_bytes:,}",
        number(row.load_s, 2),
        number(row.ttft_s, 1, 1000),
        *(number(each, 1) for each in (row.tok_s, row.tok_s_8, row.tok_s_32)),
    )


def charts(rows: "list[QualityRow]") -> list[Chart]:
    """Quality against size, and against speed if it was measured."""
    made = [
        Chart(
            "quality against size",
            "MB of weights",
            "KL",
            tuple(Point(row.scheme, row.bytes / 1e6, row.kl) for row in rows),
        )
    ]
    timed = [(row, row.tok_s) for row in rows if row.tok_s is not None]
    if timed:
        points = tuple(Point(row.scheme, speed, row.kl) for row, speed in timed)
        made.append(Chart("quality against speed", "tokens per second, one row", "KL", points))
    return made
