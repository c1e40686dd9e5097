"""A question has cases: each is measured alone, and is stored as one line when it ends.

All cases are measured in one sitting, then in the next: the rounds of one case are minutes and an engine
apart, as those of a later run are.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

from rich.progress import Progress

from engine.api.errors import EngineError
from minichat.bench.drift import drifting
from minichat.bench.harness import Bench, Figure, joined
from minichat.bench.record import CaseFile, CaseKey


class CaseFailed(Exception):
    """A case cannot be measured: the reason, as a sentence without its case."""


class CaseSkipped(Exception):
    """A case makes no sense with this model: the reason."""


@dataclass(frozen=True, slots=True)
class Case:
    """`about` says what it measures and how; `why_not` says why it cannot run here."""

    name: str
    run: Callable[[Bench], None]
    about: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The figures of a case, or why there are none."""

    case: str
    about: str = ""
    figures: tuple[Figure, ...] = ()
    why_not: str = ""
    failed: bool = False

    def figure(self, name: str) -> Figure | None:
        return next((each for each in self.figures if each.name == name), None)

    def joined(self, other: "CaseResult") -> "CaseResult":
        """This result with the samples of a later sitting. If one failed, there are no figures."""
        if not (self.figures and other.figures):
            return other if self.figures else self
        return replace(self, figures=joined(self.figures, other.figures))

    @property
    def named(self) -> tuple[Figure, ...]:
        """The figures with the name of the case."""
        return tuple(replace(each, name=f"{self.case}, {each.name}") for each in self.figures)


def with_drift(results: Sequence[CaseResult]) -> list[CaseResult]:
    """All results of a question, with the spread in which another run is expected."""
    figures = drifting([each.figures for each in results])
    return [replace(each, figures=spread) for each, spread in zip(results, figures, strict=True)]


@dataclass(slots=True)
class Measurement:
    """Runs the cases of a question, except those that the file holds already.

    `reset` is called between sittings, and after a case that failed: its engines may hold unfinished
    requests.
    """

    question: str
    settings: dict[str, Any]  # what a figure depends on, besides the machine and the commit
    warmup: int
    repeats: int  # in each sitting
    sittings: int = 1
    file: CaseFile | None = None
    only: Sequence[str] = ()  # patterns of case names; none: all
    progress: Progress = field(default_factory=lambda: Progress(disable=True))
    reset: Callable[[], None] = lambda: None
    begin: Callable[[str], object] = lambda what: None  # called with each case before it is measured
    budget: float = math.inf  # seconds; then no further case begins, and no round but a case's first one

    def results(self, cases: Iterable[Case]) -> Iterator[CaseResult]:
        """The result of each case when its last sitting ends, or the first one in which it has none."""
        until = time.monotonic() + self.budget
        left = {case: CaseResult(case.name) for case in cases if self.wants(case)}
        for sitting in range(1, self.sittings + 1):
            if sitting > 1 and left:
                self.reset()
            here, of_all = len(left), f", sitting {sitting} of {self.sittings}" if self.sittings > 1 else ""
            for number, (case, before) in enumerate(list(left.items()), 1):
                what = f"{case.name} ({number} of {here}{of_all})"
                result = self._result(case, sitting, what, until)
                left[case] = result if sitting == 1 else before.joined(result)
                if sitting == self.sittings or not result.figures:
                    yield left.pop(case)

    def wants(self, case: Case) -> bool:
        return not self.only or any(fnmatch(case.name, pattern) for pattern in self.only)

    def _result(self, case: Case, sitting: int, what: str, until: float) -> CaseResult:
        if case.why_not:
            return CaseResult(case.name, case.about, why_not=case.why_not)
        key = CaseKey.here(self.question, case.name, self.all_settings, sitting)
        if self.file is not None and (stored := self.file.figures(key)) is not None:
            return CaseResult(case.name, case.about, stored)
        if time.monotonic() >= until:
            spent = f"the {self.budget:g} seconds of {self.question} were over"
            return CaseResult(case.name, case.about, why_not=f"{spent}; for it alone: --only {case.name!r}")
        self.begin(what)
        bench = Bench(self.warmup, self.repeats, self.progress, keep=lambda figure: None, until=until)
        try:
            case.run(bench)
        except CaseSkipped as reason:
            return CaseResult(case.name, case.about, why_not=str(reason))
        except (CaseFailed, EngineError) as error:
            return self._failed(case, str(error))
        except RuntimeError as error:  # of torch or Triton: no memory left, a kernel that does not compile
            first, _, _ = str(error).partition("\n")
            return self._failed(case, f"{type(error).__name__}: {first}")
        if self.file is not None:
            self.file.append(key, case.about, bench.figures)
        return CaseResult(case.name, case.about, tuple(bench.figures))

    def _failed(self, case: Case, why_not: str) -> CaseResult:
        self.reset()
        return CaseResult(case.name, case.about, why_not=why_not, failed=True)

    @property
    def all_settings(self) -> dict[str, Any]:
        return {**self.settings, "warmup": self.warmup, "repeats": self.repeats}
