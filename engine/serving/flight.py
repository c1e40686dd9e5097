"""A step between its launch and its commit, and what it cost."""

from dataclasses import dataclass

from engine.execution.protocol import StepResult
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

    def observe(
        self, flight: Flight, prefill: int, result: StepResult, now: float, behind: Step | None
    ) -> None:
        """The result has come `now`; it may have waited for the step before. `behind`: the next one."""
        begun, self._committed_at = max(self._committed_at, now - result.seconds), now
        scheduler, step = self._scheduler, flight.step
        if flight.follows or result.compiled:
            return
        if prefill or behind is None or not behind.prefill:  # else the next launch may have taken longer
            scheduler.costs.observe_step(prefill, now - begun, step.tokens - prefill)
        scheduler.pace.observe(step, prefill, now - begun, behind)
        if not prefill and len(step.rows):
            scheduler.speculator.observe_step(step, now - begun)
