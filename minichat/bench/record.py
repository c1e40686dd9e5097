"""A file with one line of JSON per finished case.

A line is written in one piece when its case ends. A process that is killed loses only the case that was
running; what it wrote of a line is dropped by the next one.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Self

from engine.api.errors import BadInput, EngineError
from minichat.bench.drift import drifting
from minichat.bench.harness import Figure, joined
from minichat.bench.machine import described, identity, machine, origin


@dataclass(frozen=True, slots=True)
class CaseKey:
    """What a case measured. Equal keys need no second measurement."""

    question: str
    case: str
    settings: str  # as JSON
    commit: str | None
    machine: tuple[Any, ...]
    sitting: int = 1

    @classmethod
    def here(cls, question: str, case: str, settings: Mapping[str, Any], sitting: int) -> Self:
        line = {"question": question, "case": case, "settings": settings, "sitting": sitting}
        return cls.of({**line, **origin()})

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        settings = json.dumps(line["settings"], sort_keys=True)
        where = settings, line["commit"], identity(line["machine"])
        return cls(line["question"], line["case"], *where, line.get("sitting", 1))


class CaseFile:
    """The cases of a file, which need not exist. Raises BadInput if it holds something else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read {path}: {error}") from None
        self._whole = len(text[: text.rfind("\n") + 1].encode())  # bytes of complete lines
        self.lines = [self._parsed(number, line) for number, line in enumerate(text.split("\n")[:-1], 1)]
        self._figures = {CaseKey.of(line): _figures(line) for line in self.lines}

    def _parsed(self, number: int, line: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = json.loads(line)
            parsed["settings"].pop("sittings", None)  # in older files; more can be added to any run
            CaseKey.of(parsed), _figures(parsed)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadInput(f"{self.path}, line {number}: not a result of minichat bench") from None
        return parsed

    def figures(self, key: CaseKey) -> tuple[Figure, ...] | None:
        """The figures of a finished case, or None."""
        return self._figures.get(key)

    def earlier(
        self, question: str, case: str, settings: Mapping[str, Any]
    ) -> tuple[tuple[Figure, ...], str]:
        """The newest figures of this case with these settings, from any commit.

        Those of this machine go first. The machine is returned if it is another one.
        """
        wanted, here = (question, case, settings), identity(machine())
        lines = [line for line in self.lines if (line["question"], line["case"], line["settings"]) == wanted]
        lines.sort(key=lambda line: identity(line["machine"]) == here)
        if not lines:
            return (), ""
        newest, there = lines[-1], lines[-1]["machine"]
        run = [
            each for each in self.lines if _asked(each) == _asked(newest) and _run_of(each) == _run_of(newest)
        ]
        figures = next(figures for line, figures in of_newest(run) if line["case"] == case)
        return figures, "" if identity(there) == here else described(there)

    def append(self, key: CaseKey, about: str, figures: Sequence[Figure]) -> None:
        line = {
            "question": key.question,
            "case": key.case,
            "about": about,
            "settings": json.loads(key.settings),
            "sitting": key.sitting,
            "figures": [_stored(figure) for figure in figures],
            **origin(),
        }
        try:
            with self.path.open("ab") as file:
                file.truncate(self._whole)
                self._whole += file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise EngineError(f"cannot write {self.path}: {error.strerror or error}") from None
        self.lines.append(line)
        self._figures[key] = tuple(figures)


def of_newest(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], tuple[Figure, ...]]]:
    """A line of each case of a question, and its figures in all sittings, with their drift.

    Of the commit and machine of the newest line.
    """
    by_case: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        if _run_of(line) == _run_of(lines[-1]):
            by_case.setdefault(line["case"], {})[line.get("sitting", 1)] = line
    cases = [reduce(joined, map(_figures, sittings.values())) for sittings in by_case.values()]
    yield from zip((next(iter(each.values())) for each in by_case.values()), drifting(cases), strict=True)


def _asked(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["question"], line["settings"]


def _run_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["commit"], identity(line["machine"])


def _stored(figure: Figure) -> dict[str, Any]:
    """Without what its other lines say about it."""
    return {name: value for name, value in asdict(figure).items() if name not in ("sittings", "drift")}


def _figures(line: Mapping[str, Any]) -> tuple[Figure, ...]:
    return tuple(Figure(**figure | {"values": tuple(figure.get("values", ()))}) for figure in line["figures"])
