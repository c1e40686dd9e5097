"""The arithmetic of the harness, with fake clocks."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress

from benchmarks.alternating import Tree, alternate
from minichat.bench import harness
from minichat.bench.harness import Bench, Figure, Timing, in_unit, note_all, spread


@pytest.fixture
def bench() -> Bench:
    return Bench(warmup=1, repeats=3, progress=Progress(disable=True), keep=lambda _: None)


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Advance the fake wall clock and CPU clock by these seconds."""
    now = {"wall": 0.0, "cpu": 0.0}
    monkeypatch.setattr(harness.time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(harness.time, "process_time", lambda: now["cpu"])

    def last(wall: float, cpu: float) -> None:
        now["wall"] += wall
        now["cpu"] += cpu

    return last


def test_warm_up_is_not_counted(bench: Bench, advance: Callable[[float, float], None]) -> None:
    lengths = iter([100.0, 1.0, 2.0, 3.0])
    figure = bench.measure("call", lambda: advance(next(lengths), 0.5))
    assert figure == Figure("call", "s", 2.0, 1.5, 2.5, 3, wall_s=2.0, cpu_s=0.5, values=(1.0, 2.0, 3.0))


def test_units_give_a_rate_or_a_time_per_unit(bench: Bench, advance: Callable[[float, float], None]) -> None:
    def tokens() -> float:
        advance(2.0, 2.0)
        return 8

    assert bench.measure("rate", tokens, unit="tok/s").median == 4.0
    assert bench.measure("time", tokens, unit="s/tok").median == 0.25


def test_setup_is_not_timed(bench: Bench, advance: Callable[[float, float], None]) -> None:
    figure = bench.measure("call", lambda: advance(1.0, 1.0), before=lambda: advance(50.0, 50.0))
    assert (figure.median, figure.cpu_s) == (1.0, 1.0)


def test_contenders_alternate_and_are_compared_with_the_first(
    bench: Bench, advance: Callable[[float, float], None]
) -> None:
    order: list[str] = []
    mood = iter([1.0, 1.0, 2.0, 2.0, 8.0, 8.0, 4.0, 4.0])  # equal within a round, different between rounds

    def contender(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            order.append(name)
            advance(seconds * next(mood), 0.0)

        return call

    ratios = bench.compare({"slow": contender("slow", 3.0), "fast": contender("fast", 1.0)})
    assert order == ["slow", "fast", "fast", "slow"] * 2
    assert ratios == {"fast": Figure.of("fast / slow", "x as fast", [3.0, 3.0, 3.0])}
    assert [figure.name for figure in bench.figures] == ["slow", "fast", "fast / slow"]


@pytest.mark.parametrize(
    ("unit", "of_ratio"),
    [("s", "x as long"), ("µs", "x as long"), ("tok/s", "x as fast"), ("GB/s", "x as fast")],
)
def test_a_ratio_says_whether_it_is_of_times_or_of_speeds(bench: Bench, unit: str, of_ratio: str) -> None:
    note_all(bench, "a load", {"plain": [2.0, 4.0], "other": [1.0, 2.0]}, unit)
    assert bench.figures[-1] == Figure.of("a load, other / plain", of_ratio, [0.5, 0.5])

    class Answers(Tree):
        def __init__(self, answer: float) -> None:
            self.answer = answer

        def ask(self, question: Any) -> Any:
            return self.answer

    alternate(bench, {"other": Answers(2.0), "this": Answers(1.0)}, {"a step": (0, unit)})
    assert bench.figures[-1].name == "a step, this / other"
    assert (bench.figures[-1].unit, bench.figures[-1].median) == (of_ratio, 0.5)


def test_every_figure_is_recorded_at_once() -> None:
    kept: list[Figure] = []
    bench = Bench(warmup=0, repeats=1, progress=Progress(disable=True), keep=kept.append)
    bench.note("peak", 12, "blocks")
    bench.note("first token", [1.0, 2.0, 3.0], "s")
    assert kept == bench.figures
    assert [(figure.median, figure.samples) for figure in kept] == [(12, 1), (2.0, 3)]


def test_a_call_that_returns_another_type_is_reported(bench: Bench) -> None:
    with pytest.raises(TypeError, match="generate returned a str"):
        bench.measure("generate", lambda: "text")  # type: ignore[arg-type, return-value]


def test_an_unknown_unit_is_reported() -> None:
    with pytest.raises(ValueError, match=r"the unit of a timed figure must be .*, got 'tokens'"):
        in_unit(Timing(1.0, 1.0, 1.0), "tokens")


def test_no_samples_make_no_figure(bench: Bench) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        bench.note("latency", [], "s")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_quartiles_surround_the_median(values: list[float]) -> None:
    median, low, high = spread(values)
    assert min(values) <= low <= median <= high <= max(values)
    assert spread(values[::-1]) == (median, low, high)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "settle", lambda: None)
