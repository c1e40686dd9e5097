"""Reports evictions of cached blocks as events of the requests that took their space."""

import math

from engine.api import events
from engine.api.events import Bus, Event
from engine.scheduling.scheduler import Scheduler

_EVERY = 1.0  # seconds between two reports of requests that keep evicting


class EvictionReports:
    """A request's first evictions are reported in their step, the last before it ends or is preempted.

    Between these there is about one report a second for all requests together, because a full cache evicts in
    every step.
    """

    def __init__(self, scheduler: Scheduler, bus: Bus) -> None:
        self._scheduler, self._bus = scheduler, bus
        self._reported: dict[int, float] = {}  # the time of the last report, by request
        bus.subscribe(self._before)  # first, so that others see what a request evicted before its end

    def report(self) -> None:
        """Report what the step that has just been scheduled evicted, unless it is held back."""
        if not (unreported := self._scheduler.pool.unreported):
            return
        now, pause = self._scheduler.clock(), _EVERY * len(self._reported)
        for request in tuple(unreported):
            runs = request in self._scheduler.requests
            if not runs or now - self._reported.get(request, -math.inf) >= pause:
                self._report(request, now)
            if not runs:
                self._reported.pop(request, None)

    def _before(self, event: Event) -> None:
        if isinstance(event, events.Finished | events.Preempted):
            self._report(event.request, event.at)
            if isinstance(event, events.Finished):
                self._reported.pop(event.request, None)

    def _report(self, request: int, now: float) -> None:
        if blocks := self._scheduler.pool.unreported.pop(request, 0):
            self._reported[request] = now
            self._bus.emit(events.Evicted(self._scheduler.step, now, request, blocks))
