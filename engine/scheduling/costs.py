"""What things have cost here so far: the scheduler decides by these, not by guesses."""

from dataclasses import dataclass

from engine.api.request import Request
from engine.scheduling.settings import SchedulerSettings

_MEMORY = 0.2  # the weight of the newest sample


@dataclass(slots=True)
class Costs:
    """Running means in seconds. None: never seen."""

    prefill_token: float | None = None
    swapped_block: float | None = None
    step: float | None = None

    def saw_step(self, prefill_tokens: int, seconds: float) -> None:
        self.step = _mean(self.step, seconds)
        if prefill_tokens >= 16:  # fewer say more about the decodes beside them
            self.prefill_token = _mean(self.prefill_token, seconds / prefill_tokens)

    def saw_swap(self, blocks: int, seconds: float) -> None:
        if blocks:
            self.swapped_block = _mean(self.swapped_block, seconds / blocks)

    def recompute(self, tokens: int) -> float:
        return tokens * (self.prefill_token or 0.0)

    def swap(self, blocks: int) -> float:
        """Out and, later, in again."""
        return 2 * blocks * (self.swapped_block or 0.0)

    def swaps(self, victim: Request, rules: SchedulerSettings, block_size: int) -> bool:
        """Whether a request that gives way keeps its blocks in host memory."""
        if rules.preemption != "auto":
            return rules.preemption == "swap"
        return self.swap_is_cheaper(victim.launched, -(-victim.launched // block_size))

    def swap_is_cheaper(self, tokens: int, blocks: int) -> bool:
        return self.swap(blocks) < self.recompute(tokens)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _MEMORY * (new - old)
