"""Counts and clocks of a running engine. Cheap to feed, worked out only when asked."""

from collections import deque

import numpy as np

from engine.api.snapshot import Quantiles, StepTimes, Throughput
from engine.scheduling.step import Step

_WINDOW = 1.0  # seconds that a rate looks back
_LEAST = 0.05  # seconds that it looks at: a single short step would promise too much
_SAMPLES = 2048
_NEWEST = 0.1  # the weight of the newest step in a running mean


class Meters:
    """Fed once a step and once a token; read by snapshots."""

    def __init__(self) -> None:
        self.finished = 0
        self._ttft: deque[float] = deque(maxlen=_SAMPLES)
        self._itl: deque[float] = deque(maxlen=_SAMPLES)
        # from when to when, rows, prefill, decode
        self._steps: deque[tuple[float, float, int, int, int]] = deque(maxlen=_SAMPLES)
        self._means = [0.0, 0.0, 0.0, 0.0]
        self._evictions = (-_WINDOW, 0)  # when they were told last, and how many there had been
        self.first_token = self._ttft.append
        self.next_token = self._itl.append

    def step(self, at: float, step: Step, prefill: int, spent: tuple[float, float, float, float]) -> None:
        """One step is committed; `spent` are its seconds for schedule, launch, wait and commit."""
        began = at - sum(spent[:3])  # what is committed behind it is the next one's
        self._steps.append((began, at, len(step.rows), prefill, step.tokens - prefill))
        for i, seconds in enumerate(spent):
            old = self._means[i]
            self._means[i] = old + _NEWEST * (seconds - old) if old else seconds

    def evicted(self, now: float, count: int) -> int:
        """How many are to be told now, of so many in all: a full cache evicts in every step."""
        told_at, told = self._evictions
        if count <= told or now - told_at < _WINDOW:
            return 0
        self._evictions = now, count
        return count - told

    def times(self) -> StepTimes:
        return StepTimes(*self._means)

    def rates(self, now: float) -> Throughput:
        """Since the first of the steps of the last second began: young work is not diluted."""
        recent = [each for each in self._steps if each[1] > now - _WINDOW]
        if not recent:
            return Throughput()
        rows, prefill, decode = (sum(each[i] for each in recent) for i in (2, 3, 4))
        count, seconds = len(recent), max(now - recent[0][0], _LEAST)
        return Throughput(
            prefill=prefill / seconds,
            decode=decode / seconds,
            steps=count / seconds,
            batch=rows / count,
            step_tokens=(prefill + decode) / count,
        )

    def ttft(self) -> Quantiles:
        return _quantiles(self._ttft)

    def itl(self) -> Quantiles:
        return _quantiles(self._itl)


def _quantiles(samples: deque[float]) -> Quantiles:
    if not samples:
        return Quantiles()
    ordered = np.sort(np.fromiter(samples, float, len(samples)))
    last = len(ordered) - 1
    p50, p90, p99 = (float(ordered[round(share * last)]) for share in (0.5, 0.9, 0.99))
    return Quantiles(p50, p90, p99, len(samples))
