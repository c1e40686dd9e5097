"""Beam search as a pure computation: which hypotheses continue, which are done, and when to stop.

The semantics and the order of operations on scores are those of transformers' `generate(num_beams=w)`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine.api.params import EarlyStopping, SamplingParams

Path = tuple["Path", int] | None  # a hypothesis' tokens after the prompt, last to first


class Continuation(NamedTuple):
    """A hypothesis of the next step: the index of a current one, and the token that follows it."""

    parent: int
    token: int


class Done(NamedTuple):
    """A hypothesis that has ended."""

    score: float
    tokens: tuple[int, ...]  # after the prompt, including the one that ended it


@dataclass(frozen=True, slots=True)
class SearchRules:
    """The parameters of a search. They can be replaced between steps."""

    width: int
    candidates: int  # how many of the best continuations to consider; enough are left if many of them end
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @classmethod
    def of(cls, params: SamplingParams, stop_ids: frozenset[int]) -> "SearchRules":
        count = params.candidates(len(params.enders(stop_ids)))
        return cls(params.beams, count, params.length_penalty, params.early_stopping)


@dataclass(slots=True)
class BeamSearch:
    """`live` and `done` are sorted, best first."""

    rules: SearchRules
    most: int  # tokens after the prompt at which every hypothesis ends
    length: int = 0  # tokens after the prompt, of each live hypothesis
    live: list[Path] = field(default_factory=lambda: [None])
    totals: np.ndarray = field(default_factory=lambda: np.zeros(1, np.float32))  # their log-probabilities
    done: list[Done] = field(default_factory=list)
    over: bool = False

    def advance(
        self, ids: np.ndarray, values: np.ndarray, stops: Callable[[int, int], bool]
    ) -> list[Continuation]:
        """Add a token. `ids` and `values` [live, columns]: each hypothesis' likeliest tokens, best first.

        `stops` returns whether a token ends the hypothesis at an index.
        """
        rules = self.rules
        sums = (values + self.totals[:, None]).ravel()
        best = _best(sums, rules.candidates)
        parents, columns = np.divmod(best, values.shape[1])
        self.length += 1
        full = self.length >= self.most
        kept: list[Continuation] = []
        totals: list[np.float32] = []
        for rank, (parent, token, total) in enumerate(
            zip(parents.tolist(), ids[parents, columns].tolist(), sums[best], strict=True)
        ):
            if full or stops(parent, token):
                if rank < rules.width:
                    score = float(total / self._divisor(self.length))
                    self.done.append(Done(score, tokens_of((self.live[parent], token))))
            elif len(kept) < rules.width:
                kept.append(Continuation(parent, token))
                totals.append(total)
        self.done.sort(key=lambda each: -each.score)
        del self.done[rules.width :]
        self.live = [(self.live[each.parent], each.token) for each in kept]
        self.totals = np.array(totals, np.float32)
        self.over = not kept or not self._may_improve()
        return kept

    def scores(self) -> list[float]:
        """The scores of the live hypotheses, as if they ended here."""
        return (self.totals / self._divisor(max(1, self.length))).tolist()

    def _may_improve(self) -> bool:
        """Whether the best live hypothesis could still beat the worst finished one."""
        rules = self.rules
        if len(self.done) < rules.width:
            return True
        if rules.early_stopping is True:
            return False
        farthest = rules.early_stopping == "never" and rules.length_penalty > 0
        length = self.most if farthest else self.length
        return bool(self.totals[0] / self._divisor(length) > np.float32(self.done[-1].score))

    def _divisor(self, length: int) -> np.float32:
        return np.float32(length**self.rules.length_penalty)


def tokens_of(path: Path) -> tuple[int, ...]:
    tokens = []
    while path is not None:
        path, token = path
        tokens.append(token)
    return tuple(reversed(tokens))


def _best(sums: np.ndarray, count: int) -> np.ndarray:
    """Indices of the highest sums, descending, without those of -inf."""
    some = np.arange(len(sums))
    if len(sums) > 2 * count:
        some = np.sort(np.argpartition(-sums, count - 1)[:count])
    best = some[np.argsort(-sums[some], kind="stable")][:count]
    return best[sums[best] > -np.inf]
