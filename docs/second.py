"""Whether a second run agrees with the first: `python -m docs.second FILE[@COMMIT] FILE[@COMMIT]`.

The files are those of `minichat bench --json`. A figure agrees if its median in the second run is within
the spread of the first one. The settings must be the same, except for the number of rounds. The commits may
differ, and are named.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.api.errors import EngineError
from minichat.bench.compare import FigureComparison, compared, summary
from minichat.bench.machine import described
from minichat.bench.record import CaseFile, of_newest
from minichat.bench.report import shown

_OFTEN = ("warmup", "repeats")


def run_of(place: str) -> dict[str, list[dict[str, Any]]]:
    """The lines of each question, of this commit if one is given."""
    name, _, commit = place.partition("@")
    if not Path(name).is_file():
        raise EngineError(f"{name}: no such file")
    found: dict[str, list[dict[str, Any]]] = {}
    for line in CaseFile(Path(name)).lines:
        if commit in ("", line["commit"]):
            found.setdefault(line["question"], []).append(line)
    return found


def agreement(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> tuple[str, list[FigureComparison]]:
    """Where and when both runs of a question were, and the figures that both have."""
    before = {(_asked(line), each.name): each for line, figures in of_newest(first) for each in figures}
    found = [
        compared(f"{line['case']}, {now.name}", now, then)
        for line, figures in of_newest(second)
        for now in figures
        if (then := before.get((_asked(line), now.name))) is not None
    ]
    runs = (
        f"{lines[-1]['when'][:16]} at {lines[-1]['commit']} on {described(lines[-1]['machine'])}"
        for lines in (first, second)
    )
    return " and ".join(runs), found


def _asked(line: Mapping[str, Any]) -> str:
    """The case and its settings, but for how often it was measured."""
    settings = {key: value for key, value in line["settings"].items() if key not in _OFTEN}
    return json.dumps([line["case"], settings], sort_keys=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.second", description=__doc__.partition("\n")[0])
    parser.add_argument("first", metavar="FILE[@COMMIT]")
    parser.add_argument("second", metavar="FILE[@COMMIT]")
    options = parser.parse_args(argv)
    try:
        first, second = run_of(options.first), run_of(options.second)
    except EngineError as error:
        parser.error(str(error))
    for question in [each for each in first if each in second]:
        where, found = agreement(first[question], second[question])
        print(f"{question}, {where}: {summary(found)}")
        for each in found:
            if not each.agrees:
                then, now = shown(each.then), shown(each.now)
                print(f"  {each.name}: {then.value} ({then.spread}), now {now.value} ({now.spread})")
        print()
    return 0 if first.keys() & second.keys() else 1


if __name__ == "__main__":
    sys.exit(main())
