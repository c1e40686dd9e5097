"""Measure on a noisy machine: warm up, repeat, take medians, alternate the calls that are compared."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from rich.progress import Progress

FASTER, LONGER = "x as fast", "x as long"  # units of ratios
Call = Callable[[], float | None]  # returns its number of units; None is one


@dataclass(frozen=True, slots=True)
class Timing:
    wall: float  # seconds
    cpu: float  # seconds of all threads of this process
    units: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number: the median of its samples, with the quartiles around it, and the samples."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    samples: int
    wall_s: float | None = None  # median of a whole call; None if no call was timed
    cpu_s: float | None = None
    values: tuple[float, ...] = ()  # the samples; not in older files
    sittings: tuple[float, ...] = ()  # the median of each, if there were several; not in files
    drift: float = 0.0  # how much more another run may differ than the samples do; not in files

    @classmethod
    def of(cls, name: str, unit: str, values: Sequence[float], timings: "Sequence[Timing]" = ()) -> Self:
        wall = statistics.median(timing.wall for timing in timings) if timings else None
        cpu = statistics.median(timing.cpu for timing in timings) if timings else None
        return cls(name, unit, *spread(values), len(values), wall, cpu, tuple(values))

    @property
    def least(self) -> float:
        """The lower end of the spread: of the samples, and of the drift below them."""
        least, more = min(self.values, default=self.low), 1 + self.drift
        return least / more if least > 0 else least * more

    @property
    def most(self) -> float:
        most, more = max(self.values, default=self.high), 1 + self.drift
        return most * more if most > 0 else most / more

    @property
    def moved(self) -> float | None:
        """How much its sittings differ, relative to the lowest. None of one sitting."""
        if not self.sittings:
            return None
        low, high = min(self.sittings), max(self.sittings)
        return high / low - 1 if low > 0 else 0.0

    def joined(self, other: "Figure") -> "Figure":
        """This figure with the samples of another sitting."""
        values = (*self.values, *other.values)
        median, low, high = spread(values)
        sittings = (*(self.sittings or (self.median,)), *(other.sittings or (other.median,)))
        return replace(
            self, median=median, low=low, high=high, samples=len(values), values=values, sittings=sittings
        )


def joined(figures: Sequence[Figure], later: Sequence[Figure]) -> tuple[Figure, ...]:
    """The figures of a case with the samples of a later sitting."""
    by_name = {each.name: each for each in later}
    return tuple(each.joined(by_name[each.name]) for each in figures if each.name in by_name)


@dataclass
class Bench:
    """Passed to a benchmark's run(): measures, and reports each figure as soon as it is measured."""

    warmup: int
    repeats: int
    progress: Progress
    keep: Callable[[Figure], None]
    figures: list[Figure] = field(default_factory=list)
    until: float = math.inf  # of time.monotonic; then no further round begins, once there is a sample

    def measure(
        self, name: str, call: Call, *, unit: str = "s", before: Callable[[], object] | None = None
    ) -> Figure:
        """Time one call: `tok/s` in units per second, `s` or `s/step` per unit; `before` is not timed."""
        rounds = self._rounds({name: call}, before)
        return self._timed_figure(name, unit, [one[name] for one in rounds])

    def compare(
        self, calls: Mapping[str, Call], *, unit: str = "s", before: Callable[[], object] | None = None
    ) -> dict[str, Figure]:
        """Time several alternating calls. Return the speed of each of the others relative to the first.

        A ratio is taken within a round, under the same load; the median is over the rounds.
        """
        rounds = self._rounds(calls, before)
        for name in calls:
            self._timed_figure(name, unit, [one[name] for one in rounds])
        first, *others = calls
        speed = [{name: timing.units / timing.wall for name, timing in one.items()} for one in rounds]
        return {
            name: self.note(f"{name} / {first}", [one[name] / one[first] for one in speed], FASTER)
            for name in others
        }

    def note(self, name: str, samples: float | Sequence[float], unit: str) -> Figure:
        """Record a number that the benchmark measured itself: the latency of each request, a memory peak."""
        values = [samples] if isinstance(samples, int | float) else list(samples)
        return self._keep(Figure.of(name, unit, values))

    def observe(self, units: Mapping[str, str], call: Callable[[], Mapping[str, float]]) -> dict[str, Figure]:
        """Record numbers that each round measures itself. `units`: the unit of each, by its name."""
        found: dict[str, list[float]] = {name: [] for name in units}
        task = self.progress.add_task(", ".join(units), total=self.warmup + self.repeats)
        for index in range(self.warmup + self.repeats):
            one = call()
            self.progress.update(task, advance=1, refresh=True)
            if index >= self.warmup:
                for name, values in found.items():
                    values.append(one[name])
                if time.monotonic() >= self.until:
                    break
        self.progress.remove_task(task)
        return {name: self.note(name, values, units[name]) for name, values in found.items()}

    def _rounds(
        self, calls: Mapping[str, Call], before: Callable[[], object] | None
    ) -> list[dict[str, Timing]]:
        """Time each call once per round; every other round runs backwards, so that drift favors no call."""
        rounds = []
        label = " / ".join(calls)
        task = self.progress.add_task(label, total=(self.warmup + self.repeats) * len(calls))
        for index in range(self.warmup + self.repeats):
            order = list(calls) if index % 2 == 0 else list(calls)[::-1]
            one = {}
            for name in order:
                if before is not None:
                    before()
                one[name] = timed(name, calls[name])
                self.progress.update(task, advance=1, refresh=True)
            rounds.append(one)
            if index >= self.warmup and time.monotonic() >= self.until:
                break
        self.progress.remove_task(task)
        return rounds[self.warmup :]

    def _timed_figure(self, name: str, unit: str, timings: Sequence[Timing]) -> Figure:
        return self._keep(Figure.of(name, unit, [in_unit(timing, unit) for timing in timings], timings))

    def _keep(self, figure: Figure) -> Figure:
        self.figures.append(figure)
        self.keep(figure)
        return figure


def rounds(bench: Bench, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each contender's results per counted round; every other round runs backwards."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    count = bench.warmup + bench.repeats
    task = bench.progress.add_task(" / ".join(contenders), total=count)
    for index in range(count):
        for name in list(contenders)[:: -1 if index % 2 else 1]:
            value = contenders[name]()
            if index >= bench.warmup:
                found[name].append(value)
        bench.progress.update(task, advance=1, refresh=True)
    bench.progress.remove_task(task)
    return found


def note_all(bench: Bench, what: str, found: dict[str, list[float]], unit: str = "s") -> None:
    """Record each contender's figure, and its ratio to the first one's."""
    first, *others = found
    for name, values in found.items():
        bench.note(f"{what}, {name}", values, unit)
    for name in others:
        ratios = [b / a for a, b in zip(found[first], found[name], strict=True)]
        bench.note(f"{what}, {name} / {first}", ratios, ratio_unit(unit))


def ratio_unit(unit: str) -> str:
    """The unit of a ratio of figures: of rates more is better, of times less."""
    return FASTER if unit.endswith("/s") else LONGER


def timed(name: str, call: Call) -> Timing:
    settle()
    cpu, wall = time.process_time(), time.perf_counter()
    done = call()
    settle()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if done is not None and not isinstance(done, int | float):
        raise TypeError(f"{name} returned a {type(done).__name__}: return its number of units, or None for 1")
    return Timing(wall, cpu, 1.0 if done is None else float(done))


def settle() -> None:
    """Wait until the GPU's queue is empty, so that only finished work is timed."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def in_unit(timing: Timing, unit: str) -> float:
    if unit == "s" or unit.startswith("s/"):
        return timing.wall / timing.units
    if unit.endswith("/s"):
        return timing.units / timing.wall
    raise ValueError(f"the unit of a timed figure must be 's', 's/THING' or 'THING/s', got {unit!r}")


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and the quartiles below and above it."""
    if not values:
        raise ValueError("a figure needs at least one sample")
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, low, high
