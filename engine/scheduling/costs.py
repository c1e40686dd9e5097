"""What things have cost here so far: the scheduler decides by these, not by guesses."""

from dataclasses import dataclass

from engine.kv.tiers.cost import running_mean
from engine.scheduling.settings import SchedulerSettings


@dataclass(slots=True)
class Costs:
    """Running means in seconds. None: never seen."""

    prefill_token: float | None = None
    step: float | None = None

    def saw_step(self, prefill_tokens: int, seconds: float) -> None:
        self.step = running_mean(self.step, seconds)
        if prefill_tokens >= 16:  # fewer say more about the decodes beside them
            self.prefill_token = running_mean(self.prefill_token, seconds / prefill_tokens)

    def recompute(self, tokens: int) -> float:
        return tokens * (self.prefill_token or 0.0)

    def moving_pays(self, seconds: float, tokens: int, rules: SchedulerSettings) -> bool:
        """Whether to move the blocks of so many tokens, which takes so long, or to compute them again."""
        if rules.preemption != "auto":
            return rules.preemption == "swap"
        return seconds < self.recompute(tokens)
