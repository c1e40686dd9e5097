"""Settings of the steps that can change at run time, including their size when memory is short."""

from dataclasses import dataclass

from engine.api.config import PreemptionName

SMALL_STEPS = 500  # how many steps stay small after one ran out of memory


@dataclass(slots=True)
class SchedulerSettings:
    step_tokens: int
    prefix_cache: bool = True
    chunked_prefill: bool = True
    overlap: bool = False  # a step is launched before the previous one is committed
    stages: int = 1  # of a pipeline: as many steps are in flight, each with its own requests
    preemption: PreemptionName = "auto"
    _full: int = 0  # step_tokens before memory ran short; 0 if it has not
    _small_until: int = 0  # the step from which sizes may grow again

    @property
    def ahead(self) -> int:
        """How many steps may be in flight, with overlap, when the next one is launched."""
        return max(1, self.stages - 1)

    def halve(self, tokens: int, step: int) -> None:
        """Halve the size of steps for a while after one of `tokens` tokens ran out of memory."""
        self._full = self._full or self.step_tokens
        self.step_tokens = max(1, tokens // 2)
        self._small_until = step + SMALL_STEPS

    def regrow(self, step: int) -> None:
        """Double the size of steps again once they have had enough memory for a long time."""
        if self._full and step >= self._small_until:
            self.step_tokens = min(2 * self.step_tokens, self._full)
            self._small_until = step + SMALL_STEPS
            if self.step_tokens == self._full:
                self._full = 0
