"""How many tokens of prompts a step takes beside decodes, if these may only slow down by a limited factor.

Everything is measured while the engine runs. A step of decodes takes a time that depends on their number.
With prompts it takes longer, by a time that depends on its size, and on how far into its prompt a piece is,
because attention reads what is before it. The rule takes the largest piece that is expected to stay within
the factor. Once in a while, and before it knows anything, it leaves out the prompts for a few steps, to
measure the decodes alone; and it tries sizes that it has not measured, or not for long.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from engine.api.request import Request
from engine.scheduling.costs import Usual
from engine.scheduling.step import Step

# The sizes of steps, decodes included, that are measured and chosen. On a GPU, the smaller ones are graphs.
SIZES = (16, 32, 48, 64, *(quarter << bits for bits in range(4, 24) for quarter in (5, 6, 7, 8)))
_ROWS = (1, 2, 4, 8, *SIZES)
LEAST = 16  # prompt tokens of any step with prompts, so that these advance
ALONE = 3  # steps that measure the decodes; the last may be longer, because a prompt is launched during it
REFRESH = 64  # steps with prompts until the decodes are measured again
RETRY = 512  # steps with prompts until a size is tried that was too slow, or is likely to be
PLAIN_LEAST = 3  # measurements of the decodes before sizes are compared with them
TRIALS = 2  # steps until a size is known: the first one may capture a graph
_PLAIN, _SAMPLES = 5, 32  # how many measurements are kept
_NEARLY_ALL, _FEW = 15 / 16, 8  # the share of a size's measurements that its estimate covers; half of few

# The prompt tokens of a step, given its decodes, where its first piece starts, and how many tokens are left.
PromptLimiter = Callable[[int, int, int], int]


@dataclass(slots=True)
class _Measured:
    """Steps of one size: how many pairs of tokens attention had, and by how much they were longer."""

    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    spread: tuple[float, float] = (0.0, 0.0)  # the variance of pairs, and the covariance with seconds

    def observe(self, pairs: float, seconds: float) -> None:
        self.samples.append((pairs, seconds))
        self.spread = _spread(self.samples)

    def seconds(self, slope: float) -> float:
        """What nearly all steps of this size stay below, without their pairs, at `slope` seconds each."""
        rest = sorted(seconds - slope * pairs for pairs, seconds in self.samples)
        return rest[int((_NEARLY_ALL if len(rest) > _FEW else 0.5) * (len(rest) - 1))]


@dataclass(slots=True)
class StepPace:
    """The measurements of one engine, and what follows from them."""

    factor: float | None = None  # how much longer a step may be than its decodes alone; None: any time
    limited: int = 0  # prompt tokens of the last step beside decodes, if it had room for more; else 0
    _plain: Usual[int] = field(default_factory=lambda: Usual(_PLAIN))  # seconds by the number of decodes
    _sizes: dict[int, _Measured] = field(default_factory=dict)
    _steps: int = 0  # with prompts beside decodes
    _alone: int = 0  # steps left that measure the decodes
    _since: int = 0  # steps with prompts since the decodes were measured
    _tried: int = 0  # when a size was tried last, in steps with prompts

    def limit(self, factor: float | None) -> None:
        """Allow another factor from the next step on; None: any time."""
        self.factor, self.limited = factor, 0

    def forget(self) -> None:
        """Drop all measurements: the model or its form has changed."""
        self._plain.forget()
        self._sizes.clear()

    def observe(self, step: Step, prefill: int, seconds: float, behind: Step | None) -> None:
        """Record a step with `prefill` tokens of prompts. `behind`: the one launched while it ran."""
        decodes = step.tokens - prefill
        if self.factor is None or not decodes:
            return
        rows = _ROWS[bisect_left(_ROWS, decodes)]
        if not prefill:
            if behind is None or not behind.prefill:  # else its launch may have taken longer than this step
                self._plain.observe(rows, seconds)
                self._since = 0
            return
        self._steps += 1
        self._since += 1
        if (usual := self._plain.of(rows, PLAIN_LEAST)) is not None:
            measured = self._sizes.setdefault(SIZES[bisect_left(SIZES, step.tokens)], _Measured())
            measured.observe(_pairs_of(step), seconds - usual)

    def limiter(self, running: Collection[Request]) -> PromptLimiter | None:
        """The limiter of the next step. None: nothing limits its prompts.

        A step without decodes would delay those that are in flight, so it has no prompts either.
        """
        if self.factor is None:
            return None

        def limited(decodes: int, start: int, most: int) -> int:
            if decodes:
                return self.prompt_tokens(decodes, start, most)
            if any(each.pending for each in running):
                return 0
            self.limited = 0
            return most

        return limited

    def prompt_tokens(self, decodes: int, start: int, most: int) -> int:
        """How many prompt tokens, at most `most`, a step takes beside `decodes`; `start`: of the first piece.

        0: it measures the decodes alone.
        """
        usual = self._plain.of(_ROWS[bisect_left(_ROWS, decodes)], PLAIN_LEAST)
        if not self._alone and (usual is None or self._since >= REFRESH):
            self._alone, self._since = ALONE + 1, 0
        if self._alone > 1:
            self._alone -= 1
            return 0
        self._alone = 0
        least = min(LEAST, most)
        allowed = ((self.factor or 1.0) - 1) * (usual or 0.0)
        found = least if usual is None else self._largest(decodes, start, most, allowed)
        self.limited = found if found < most else 0
        return found

    def _largest(self, decodes: int, start: int, most: int, allowed: float) -> int:
        """The most prompt tokens whose step takes at most `allowed` seconds more than the decodes alone."""
        least, slope = min(LEAST, most), self._slope()
        larger = SIZES[bisect_right(SIZES, decodes + least) : bisect_left(SIZES, decodes + most)]
        choices = [least, *(size - decodes for size in larger), *([most] if most > least else ())]
        fixed = {}  # seconds of the sizes that were measured, without attention to what is before
        for count in choices:
            if (measured := self._sizes.get(SIZES[bisect_left(SIZES, decodes + count)])) is not None:
                fixed[count] = measured.seconds(slope)
        for at in reversed(range(len(choices))):
            if (count := choices[at]) in fixed:
                fits = min(count, within(allowed - fixed[count], start, slope))
                if fits > (choices[at - 1] if at else 0):
                    break
        else:
            return least
        if fits < count or count == most:
            return max(fits, least)
        after = choices[at + 1]
        measured = self._sizes.get(SIZES[bisect_left(SIZES, decodes + after)])
        if self._steps - self._tried < RETRY:
            if measured is not None and len(measured.samples) >= TRIALS:
                return count
            if within(allowed - _likely(fixed, count, after), start, slope) < after:
                return count
        self._tried = self._steps
        return after

    def _slope(self) -> float:
        """Seconds per pair, from how the steps of each size differ from one another."""
        spreads = [each.spread for each in self._sizes.values()]
        variance = sum(variance for variance, _ in spreads)
        return max(0.0, sum(covariance for _, covariance in spreads) / variance) if variance else 0.0


def within(seconds: float, start: int, slope: float) -> int:
    """The most tokens of a piece from `start` on whose pairs, at `slope` each, take at most that long."""
    if seconds < 0:
        return 0
    if not slope:
        return 2**62
    pairs = seconds / slope  # count * (start + count / 2)
    return int(2 * pairs / (start + math.sqrt(start * start + 2 * pairs))) if pairs else 0


def _likely(known: Mapping[int, float], best: int, after: int) -> float:
    """The seconds of `after` tokens by those of fewer, up to `best`; 0 if only one was measured."""
    if (first := min(known)) == best:
        return 0.0
    each = (known[best] - known[first]) / (best - first)
    return known[best] + max(0.0, each) * (after - best)


def _pairs_of(step: Step) -> float:
    """How many pairs of a prompt token and a token that it sees a step has."""
    rest = step.rows.numbers[step.single :]
    starts, lengths = rest[rest[:, 5] == 0, 2:4].T
    return float((lengths * (starts + lengths / 2)).sum())


def _spread(samples: Collection[tuple[float, float]]) -> tuple[float, float]:
    """The sums of squares of pairs, and of products with seconds, around their means; without stalls."""
    usual = sorted(seconds for _, seconds in samples)[(len(samples) - 1) // 2]
    kept = [each for each in samples if each[1] <= 2 * usual]
    if not kept:
        return 0.0, 0.0
    mean = sum(pairs for pairs, _ in kept) / len(kept)
    variance = sum((pairs - mean) ** 2 for pairs, _ in kept)
    return variance, sum((pairs - mean) * seconds for pairs, seconds in kept)
