"""Measured costs of steps, which the scheduler uses instead of estimates."""

from dataclasses import dataclass

from engine.kv.tiers.cost import running_mean
from engine.scheduling.settings import SchedulerSettings


@dataclass(slots=True)
class Costs:
    """A running mean in seconds; None before the first measurement."""

    prefill_token: float | None = None

    def observe_step(self, prefill_tokens: int, seconds: float) -> None:
        if prefill_tokens >= 16:  # with fewer, the time mostly measures the decodes of the same step
            self.prefill_token = running_mean(self.prefill_token, seconds / prefill_tokens)

    def recompute(self, tokens: int) -> float:
        return tokens * (self.prefill_token or 0.0)

    def moving_pays(self, seconds: float, tokens: int, rules: SchedulerSettings) -> bool:
        """Whether moving the blocks of `tokens` tokens in `seconds` beats recomputing them."""
        if rules.preemption != "auto":
            return rules.preemption == "swap"
        return seconds < self.recompute(tokens)

    def loading_pays(self, seconds: float, tokens: int, rules: SchedulerSettings) -> bool:
        """Whether loading the blocks of a prefix beats computing it. Before the first measurement: yes."""
        return rules.preemption == "swap" or self.prefill_token is None or seconds < self.recompute(tokens)
