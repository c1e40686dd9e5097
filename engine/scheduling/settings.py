"""What may change while the scheduler runs: its switches, and how large steps are when memory is short."""

from dataclasses import dataclass

from engine.api.config import PreemptionName

EASED = 500  # steps that stay small after one has found no memory


@dataclass(slots=True)
class SchedulerSettings:
    step_tokens: int
    prefix_cache: bool = True
    chunked_prefill: bool = True
    preemption: PreemptionName = "auto"
    _full: int = 0  # step_tokens before memory ran short; 0: it has not
    _ease_until: int = 0  # the step from which they may grow again

    def halve(self, tokens: int, step: int) -> None:
        """A step of so many tokens found no memory: those to come are half as large for a while."""
        self._full = self._full or self.step_tokens
        self.step_tokens = max(1, tokens // 2)
        self._ease_until = step + EASED

    def ease(self, step: int) -> None:
        """Steps may be twice as large again once they have had memory for a long while."""
        if self._full and step >= self._ease_until:
            self.step_tokens = min(2 * self.step_tokens, self._full)
            self._ease_until = step + EASED
            if self.step_tokens == self._full:
                self._full = 0
