"""Measured costs of steps, which the scheduler uses instead of estimates."""

from dataclasses import dataclass, field

from engine.kv.tiers.cost import running_mean
from engine.scheduling.settings import SchedulerSettings


@dataclass(slots=True)
class Costs:
    """Seconds per prompt token, by the bit length of a step's number of them: more in short steps."""

    _prefill: dict[int, float] = field(default_factory=dict)

    def observe_step(self, prefill_tokens: int, seconds: float) -> None:
        if prefill_tokens >= 16:  # with fewer, the time mostly measures the decodes of the same step
            size = prefill_tokens.bit_length()
            self._prefill[size] = running_mean(self._prefill.get(size), seconds / prefill_tokens)

    def recompute(self, tokens: int) -> float:
        """By the longest measured prompts that are no longer, or else the shortest. 0: none was measured."""
        if not self._prefill:
            return 0.0
        size = tokens.bit_length()
        known = max((each for each in self._prefill if each <= size), default=min(self._prefill))
        return tokens * self._prefill[known]

    def least(self, tokens: int, rules: SchedulerSettings) -> float:
        """The same, but never too much. After short prompts alone, as after a start, a token of a long one is
        not known to cost as much, but each of its steps takes no less time than a short one.
        """
        size, longest = max(self._prefill, default=0), min(tokens, rules.step_tokens)
        if 4 << size > 2 * longest:
            return self.recompute(tokens)
        return -(-tokens // longest) * (1 << size >> 1) * self._prefill.get(size, 0.0)

    def forget(self) -> None:
        self._prefill.clear()

    def moving_pays(self, seconds: float, tokens: int, rules: SchedulerSettings) -> bool:
        """Whether moving the blocks of `tokens` tokens in `seconds` beats recomputing them."""
        if rules.preemption != "auto":
            return rules.preemption == "swap"
        return seconds < self.recompute(tokens)

    def loading_pays(self, seconds: float, tokens: int, rules: SchedulerSettings) -> bool:
        """Whether loading the blocks of a prefix beats computing it. Before the first measurement: yes."""
        return rules.preemption == "swap" or not self._prefill or seconds < self.recompute(tokens)
