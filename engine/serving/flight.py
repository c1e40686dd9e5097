"""A step between its launch and its commit, and what it cost."""

from dataclasses import dataclass

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step


@dataclass(slots=True)
class Flight:
    """A step in flight: launched, not committed."""

    step: Step
    handle: object
    scheduling: float  # seconds
    launching: float  # seconds
    follows: bool = False  # it waits on the device for blocks, so its time says nothing about steps


class StepCosts:
    """Reports to the scheduler what steps cost."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._committed_at = scheduler, 0.0

    def observe(self, flight: Flight, prefill: int, seconds: float, now: float, behind: Step | None) -> None:
        """`seconds`: from its launch until now. It may have waited for the step before.

        `behind`: the next step in flight.
        """
        begun, self._committed_at = max(self._committed_at, now - seconds), now
        scheduler, step = self._scheduler, flight.step
        if flight.follows:
            return
        scheduler.costs.observe_step(prefill, now - begun)
        scheduler.pace.observe(step, prefill, now - begun, behind)
        if not prefill and len(step.rows):
            scheduler.speculator.observe_step(step, now - begun)
