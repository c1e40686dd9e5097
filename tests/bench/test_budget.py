"""A question with a budget of time ends soon after it, and says what it left out."""

import time

import pytest

from minichat.bench.cases import Case, CaseResult, Measurement
from minichat.bench.harness import Bench
from minichat.bench.questions import quick
from tests.cli.conftest import Run, run

__all__ = ["run"]


class Clock:
    """The time, which passes only in a round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def results(clock: Clock, budget: float) -> dict[str, CaseResult]:
    """Three cases, whose rounds take ten seconds."""

    def once() -> float:
        clock.now += 10
        return 1.0

    def observed(bench: Bench) -> None:
        bench.observe({"n": "s"}, lambda: {"n": once()})

    cases = [
        Case("first", lambda bench: bench.note("n", 1.0, "s") and None),
        Case("second", observed),
        Case("third", lambda bench: bench.measure("n", once) and None),
    ]
    run = Measurement("quick", {}, 1, 3, budget=budget)
    return {each.case: each for each in run.results(cases)}


def samples(result: CaseResult) -> int:
    return sum(each.samples for each in result.figures)


@pytest.mark.parametrize(
    ("budget", "second", "third"), [(1000, 3, 3), (61, 3, 2), (41, 3, 1), (30, 2, 0), (5, 1, 0)]
)
def test_no_round_begins_after_it(
    monkeypatch: pytest.MonkeyPatch, budget: float, second: int, third: int
) -> None:
    found = results(Clock(monkeypatch), budget)
    assert [samples(each) for each in found.values()] == [1, second, third]
    assert not any(each.failed for each in found.values())
    if third == 0:
        why = f"the {budget} seconds of quick were over; for it alone: --only 'third'"
        assert found["third"].why_not == why


def test_quick_says_what_comes_and_for_how_long(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "BUDGET", 1e-9)
    ran = run("bench", "quick")
    assert ran.code == 0
    assert "minichat: at most about 1e-09 seconds: device, 1 at once, 8 at once, long prompt" in ran.err
    assert "device: the 1e-09 seconds of quick were over; for it alone: --only 'device'" in ran.out
    alone = run("bench", "quick", "--only", "memory")
    assert "at most" not in alone.err and "memory, weights" in alone.out
