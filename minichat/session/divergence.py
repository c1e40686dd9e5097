"""Where replies to the same question first diverge, and the alternatives at that token."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.api.events import TokenLogprob

Who = TypeVar("Who")
MOST = 10  # alternative tokens to request


@dataclass(frozen=True, slots=True)
class OtherToken(Generic[Who]):
    """The token of another reply; None: it had ended. The share is its probability in this reply."""

    who: Who
    token: int | None
    share: float | None  # None: not in the top tokens of this reply


@dataclass(frozen=True, slots=True)
class Divergence(Generic[Who]):
    """The divergence from the perspective of one reply."""

    at: int  # the number of common tokens
    token: int | None
    share: float
    others: tuple[OtherToken[Who], ...]


@dataclass(eq=False)
class Comparison(Generic[Who]):
    """Compares growing replies. Calls `on_divergence` for each that reaches it, and again as others do."""

    all: Sequence[Who]
    on_divergence: Callable[["Comparison[Who]", Who], None]
    at: int | None = None
    _tokens: dict[Who, list[TokenLogprob]] = field(default_factory=dict)
    _ended: set[Who] = field(default_factory=set)
    _same: int = 0

    def take(self, who: Who, logprobs: Sequence[TokenLogprob]) -> None:
        if logprobs and not self.reached(who):
            self._tokens.setdefault(who, []).extend(logprobs)
            self._look(who)

    def end(self, who: Who) -> None:
        if who not in self._ended:
            reached = self.reached(who)
            self._ended.add(who)
            if not reached:
                self._look(who)

    def reached(self, who: Who) -> bool:
        """Whether its token at the divergence is known."""
        return self.at is not None and (len(self._tokens.get(who, ())) > self.at or who in self._ended)

    @property
    def over(self) -> bool:
        """Whether the comparison is complete."""
        return all(self.reached(who) or who in self._ended for who in self.all)

    def _look(self, who: Who) -> None:
        if new := self.at is None:
            self._find()
        if self.at is not None and (new or self.reached(who)):
            for each in self.all:
                if self.reached(each):
                    self.on_divergence(self, each)

    def _find(self) -> None:
        while True:
            here = [self._token(who, self._same) for who in self.all if self._has_token(who, self._same)]
            if len(set(here)) > 1:
                self.at = self._same
                return
            if len(here) < len(self.all) or here[0] is None:
                return  # some replies are too short, or all have ended
            self._same += 1

    def _has_token(self, who: Who, at: int) -> bool:
        return at < len(self._tokens.get(who, ())) or who in self._ended

    def _token(self, who: Who, at: int) -> int | None:
        received = self._tokens.get(who, ())
        return received[at].token if at < len(received) else None

    def divergence(self, who: Who) -> Divergence[Who]:
        """The divergence for one reply, based on the tokens received from the others."""
        assert self.at is not None
        received = self._tokens.get(who, ())
        own = received[self.at] if self.at < len(received) else None
        likely = dict(own.top) if own else {}
        others = []
        for other in self.all:
            token = self._token(other, self.at)
            if other is not who and self.reached(other) and token != (own.token if own else None):
                value = likely.get(token) if token is not None else None
                others.append(OtherToken(other, token, None if value is None else math.exp(value)))
        return Divergence(
            self.at, own.token if own else None, math.exp(own.logprob) if own else 0.0, tuple(others)
        )
