"""Measured costs of steps, which the scheduler uses instead of estimates."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.kv.tiers.cost import running_mean
from engine.scheduling.settings import SchedulerSettings

Kind = TypeVar("Kind", bound=Hashable)


class Usual(Generic[Kind]):
    """The usual value of each kind of step: the lower quartile of its newest samples.

    Other load on the machine only makes steps longer.
    """

    def __init__(self, kept: int = 31) -> None:
        self._samples: dict[Kind, deque[float]] = {}
        self._kept = kept

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._samples)

    def observe(self, kind: Kind, value: float) -> None:
        if (samples := self._samples.get(kind)) is None:
            samples = self._samples[kind] = deque(maxlen=self._kept)
        samples.append(value)

    def count(self, kind: Kind) -> int:
        return len(self._samples.get(kind, ()))

    def of(self, kind: Kind, least: int = 1) -> float | None:
        """None with fewer than `least` samples."""
        samples = sorted(self._samples.get(kind, ()))
        return samples[(len(samples) - 1) // 4] if len(samples) >= least else None

    def forget(self) -> None:
        self._samples.clear()


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
