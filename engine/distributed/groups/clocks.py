"""Measure how long a process works on a device, or waits for others."""

import time
from collections import deque

import torch


class CpuClock:
    """On a CPU."""

    def __init__(self) -> None:
        self.busy = self._since = 0.0

    def begin(self) -> None:
        self._since = time.perf_counter()

    def wait(self) -> None:
        """Stop while the stage before is awaited."""
        self.end()

    def go_on(self) -> None:
        self.begin()

    def end(self) -> None:
        self.busy += time.perf_counter() - self._since

    def reset(self) -> None:
        self.busy = 0.0


class GpuClock:
    """By events, which are read once the GPU has passed them."""

    def __init__(self) -> None:
        self._busy = 0.0
        self._spans: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._began = torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        self._began = torch.cuda.Event(enable_timing=True)
        self._began.record()

    def wait(self) -> None:
        """Nothing yet: what the stage before sends is awaited on the GPU."""

    def go_on(self) -> None:
        self.begin()

    def end(self) -> None:
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        self._spans.append((self._began, ended))

    @property
    def busy(self) -> float:
        while self._spans and self._spans[0][1].query():
            began, ended = self._spans.popleft()
            self._busy += began.elapsed_time(ended) / 1e3
        return self._busy

    def reset(self) -> None:
        self._busy, self._spans = 0.0, deque()
