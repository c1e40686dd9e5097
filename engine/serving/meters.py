"""Counters and timers of a running engine. Cheap to update; statistics are computed on demand."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from engine.api.histogram import Histogram
from engine.api.snapshot import Quantiles, StepTimes, Throughput
from engine.scheduling.step import Step
from engine.serving.form_times import FormTimes

_WINDOW = 1.0  # seconds that a rate covers
_LEAST = 0.05  # minimum seconds; a single short step would give too high a rate
_SAMPLES = 2048
_NEWEST = 0.1  # the weight of the newest step in a running mean
_IDLE = 0.1  # seconds without a step after which the next one is of another run
_PAUSE, _PAUSE_STEPS = 1.0, 20  # a pause takes more than these seconds, and than these mean steps
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
Attends = tuple[tuple[float, float], ...]
Cost = tuple[int, int]  # bytes read, and operations
Phases = tuple[float, float, float, float]  # seconds of schedule, launch, wait and commit


class Meters:
    """Updated once per step and once per token; read by snapshots."""

    def __init__(self, windows: Sequence[int] = ()) -> None:
        """`windows`: of the attention layers, each once; 0: none."""
        self.windows, self.finished = tuple(windows), 0
        self.replied = 0  # tokens that replies got since the last step was recorded
        self.iteration_tokens, self.forms = Histogram(_STEP_TOKENS), FormTimes()
        self._ttft: deque[float] = deque(maxlen=_SAMPLES)
        self._itl: deque[float] = deque(maxlen=_SAMPLES)
        # start, end, rows, tokens, those of prompts, those that replies got, `_attends` by window, adapters
        self._steps: deque[tuple[float, float, int, int, int, int, Attends, Cost]] = deque(maxlen=_SAMPLES)
        # start, end and seconds by phase, since the last pause or idle time
        self._timed: deque[tuple[float, float, Phases]] = deque(maxlen=_SAMPLES)
        self._usual = 0.0  # seconds of a step, as a running mean
        self._paused = False  # the newest step seemed to include a pause
        self.first_token = self._ttft.append
        self.next_token = self._itl.append

    def reset(self) -> None:
        """Forget everything measured so far."""
        self.finished, self.replied, self._usual = 0, 0, 0.0
        self.iteration_tokens = Histogram(_STEP_TOKENS)
        for samples in (self._ttft, self._itl, self._steps, self._timed):
            samples.clear()
        self.forms.forget()

    def step(self, at: float, step: Step, prefill: int, spent: Phases, adapters: Cost = (0, 0)) -> None:
        """Record a committed step; `spent` is its seconds by phase, `adapters` what its adapters cost."""
        began = at - sum(spent[:3])  # commit time counts toward the next step
        attends = tuple(_attends(step, window) for window in self.windows)
        counts = len(step.rows), step.tokens, prefill, self.replied
        self._steps.append((began, at, *counts, attends, adapters))
        self.replied = 0
        self.iteration_tokens.observe(step.tokens)
        resumed, seconds = self._paused, sum(spent)
        self._paused = not resumed and not prefill and self._has_pause(seconds)
        if self._paused:
            return  # the rates count it, the means do not
        if resumed or (self._timed and began - self._timed[-1][1] > _IDLE):
            self._timed.clear()
        self._timed.append((began, at + spent[3], spent))
        self._usual += _NEWEST * (seconds - self._usual) if self._usual else seconds

    def _has_pause(self, seconds: float) -> bool:
        """Whether the process was probably stopped during a step: Ctrl+Z, or a machine that slept.

        A slow step without a prompt is one, unless the step before was slow, too.
        """
        return 0 < _PAUSE_STEPS * self._usual < seconds and seconds > _PAUSE

    def times(self) -> StepTimes:
        recent = self._newest()
        spent = zip(*(each for _, _, each in recent), strict=True)
        return StepTimes(*(sum(phase) / len(recent) for phase in spent))

    def pace(self) -> float:
        """Steps per second, from the start of the first to the end of the last step of `times`."""
        recent = self._newest()
        stretch = recent[-1][1] - recent[0][0] if recent else 0.0
        return len(recent) / stretch if stretch else 0.0

    def _newest(self) -> list[tuple[float, float, Phases]]:
        """The steps of the last second in which some ended: the time since then does not matter."""
        since = self._timed[-1][1] - _WINDOW if self._timed else 0.0
        return [each for each in self._timed if each[1] > since]

    def rates(self, now: float) -> Throughput:
        """Rates since the first step of the last second began, so that a fresh start is not diluted."""
        recent = [each for each in self._steps if each[1] > now - _WINDOW]
        if not recent:
            return Throughput()
        count, seconds = len(recent), max(now - recent[0][0], _LEAST)
        _, _, rows, tokens, prefill, replied, attends, adapters = zip(*recent, strict=True)
        read, seen = np.mean(attends, 0).T.tolist() if self.windows else ((), ())
        return Throughput(
            prefill=sum(prefill) / seconds,
            decode=sum(replied) / seconds,
            steps=count / seconds,
            batch=sum(rows) / count,
            step_tokens=sum(tokens) / count,
            contexts=tuple(zip(self.windows, read, strict=True)),
            pairs=tuple(zip(self.windows, seen, strict=True)),
            adapters=sum(nbytes for nbytes, _ in adapters) / count,
            adapted=sum(operations for _, operations in adapters) / count,
        )

    def ttft(self) -> Quantiles:
        return _quantiles(self._ttft)

    def itl(self) -> Quantiles:
        return _quantiles(self._itl)


def _attends(step: Step, window: int) -> tuple[float, float]:
    """The tokens of context that the step's rows read, and for all its tokens together those they see."""
    rows = step.rows
    contexts, lengths = rows.contexts, rows.lengths
    read = float((np.minimum(contexts, window + lengths - 1) if window else contexts).sum())
    if step.tokens == len(rows):
        return read, read
    before = contexts - lengths
    near = np.clip(window - before, 0, lengths) if window else lengths  # tokens that see all before them
    return read, float((near * (before + (near + 1) / 2) + (lengths - near) * window).sum())


def _quantiles(samples: deque[float]) -> Quantiles:
    if not samples:
        return Quantiles()
    ordered = np.sort(np.fromiter(samples, float, len(samples)))
    last = len(ordered) - 1
    p50, p90, p99 = (float(ordered[round(share * last)]) for share in (0.5, 0.9, 0.99))
    return Quantiles(p50, p90, p99, len(samples))
