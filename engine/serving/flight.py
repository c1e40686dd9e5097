"""A step between its launch and its commit, and what it cost."""

from dataclasses import dataclass

from engine.execution.protocol import StepResult
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import Step
from engine.serving.form_times import FormTimes


@dataclass(slots=True)
class Flight:
    """A step in flight: launched, not committed."""

    step: Step
    handle: object
    scheduling: float  # seconds
    launching: float  # seconds
    follows: bool = False  # it waits on the device for blocks, so its time says nothing about steps


class StepCosts:
    """Notes what steps cost: for the scheduler, and for each form of weights and cache."""

    def __init__(self, scheduler: Scheduler, forms: FormTimes) -> None:
        self._scheduler, self._forms, self._committed_at = scheduler, forms, 0.0

    def observe(
        self, flight: Flight, prefill: int, result: StepResult, now: float, behind: Step | None, weights: str
    ) -> None:
        """Record the cost of a step whose result arrived at `now`, perhaps after a wait for the one before.

        `behind`: the step launched after it, if any. `weights`: their scheme.
        """
        begun, self._committed_at = max(self._committed_at, now - result.seconds), now
        scheduler, step, seconds = self._scheduler, flight.step, now - begun
        if flight.follows or result.compiled:
            return
        alone = behind is None or not behind.prefill  # else its launch may have taken longer
        if prefill or alone:
            scheduler.costs.observe_step(prefill, seconds, step.tokens - prefill)
        scheduler.pace.observe(step, prefill, seconds, behind)
        if prefill or not (rows := len(step.rows)):
            return
        scheduler.speculator.observe_step(step, seconds)
        if not step.drafts and alone:
            self._forms.observe(weights, scheduler.kv.kv_scheme, rows, seconds)
