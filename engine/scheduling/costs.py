"""Measured costs of steps, which the scheduler uses instead of estimates."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.kv.tiers.cost import BySize
from engine.scheduling.settings import SchedulerSettings

_LEAST = 16  # prompt tokens of a step whose time says what they cost

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

    def drop(self, kind: Kind) -> None:
        self._samples.pop(kind, None)


@dataclass(slots=True)
class Costs:
    """Seconds per prompt token, by a step's number of them: more in short steps. Seconds of decodes alone."""

    _prefill: BySize = field(default_factory=BySize)
    _decode: BySize = field(default_factory=BySize)
    busy: float = 0.0  # seconds of all steps

    def observe_step(self, prefill_tokens: int, seconds: float, decodes: int = 0) -> None:
        """Beside decodes, prompts cost what they make the step longer."""
        self.busy += seconds
        if decodes and not prefill_tokens:  # a step may consist of copies alone
            self._decode.observe(decodes, seconds)
        elif prefill_tokens >= max(_LEAST, decodes):
            longer = seconds - (self._decode.whole(decodes) if decodes else 0.0)
            if not decodes or (self._decode and longer > 0):
                self._prefill.observe(prefill_tokens, longer)

    def recompute(self, tokens: int) -> float:
        """By measured prompts of about that length; of longer ones a token takes as long. 0: none known."""
        between = tokens.bit_length() < self._prefill.largest
        return self._prefill.whole(tokens) if between else tokens * self._prefill.each(tokens)

    def wait(self, rows: int) -> float:
        """What it costs that a request misses a step of `rows` others: its share of the step."""
        return self._decode.whole(rows) / rows if rows else 0.0

    def least(self, tokens: int, rules: SchedulerSettings) -> float:
        """The same, but never too much. After short prompts alone, as after a start, a token of a long one is
        not known to cost as much, but each of its steps takes no less time than a short one.
        """
        size, longest = self._prefill.largest, min(tokens, rules.step_tokens)
        if 4 << size > 2 * longest:
            return self.recompute(tokens)
        return -(-tokens // longest) * self.recompute(1 << size >> 1)

    def forget(self) -> None:
        self._prefill.clear()
        self._decode.clear()

    def moving_pays(self, seconds: float, tokens: int, rules: SchedulerSettings) -> bool:
        """Whether moving the blocks of `tokens` tokens in `seconds` beats recomputing them."""
        if rules.preemption != "auto":
            return rules.preemption == "swap"
        return seconds < self.recompute(tokens)

    def loading_pays(self, seconds: float, tokens: int, rules: SchedulerSettings) -> bool:
        """Whether loading the blocks of a prefix beats computing it. Before the first measurement: yes."""
        return rules.preemption == "swap" or not self._prefill or seconds < self.recompute(tokens)
