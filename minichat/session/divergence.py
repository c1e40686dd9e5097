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
    share: float | None  # None: not in the top tokens of this reply, or these are not known


@dataclass(frozen=True, slots=True)
class Divergence(Generic[Who]):
    """The divergence from the perspective of one reply."""

    at: int  # the number of common tokens
    token: int | None
    share: float | None  # None: the probabilities at this token are not known
    others: tuple[OtherToken[Who], ...]


@dataclass(eq=False)
class Comparison(Generic[Who]):
    """Compares growing replies. Calls `on_divergence` for each that reaches it, and again as others do."""

    all: Sequence[Who]
    on_divergence: Callable[["Comparison[Who]", Who], None]
    at: int | None = None
    _tokens: dict[Who, list[TokenLogprob | int]] = field(default_factory=dict)
    _ended: set[Who] = field(default_factory=set)
    _same: int = 0

    def take(self, who: Who, tokens: Sequence[TokenLogprob | int]) -> None:
        """The next tokens of a reply; those of a beam search have no probabilities."""
        if tokens and not self.reached(who):
            self._tokens.setdefault(who, []).extend(tokens)
            self._look(who)

    def end(self, who: Who) -> None:
        if who not in self._ended:
            reached = self.reached(who)
            self._ended.add(who)
            if not reached:
                self._look(who)

    def leave(self, who: Who) -> None:
        """It was cut off: no one knows how it would have gone on."""
        if not self.reached(who):
            self.all = [each for each in self.all if each is not who]
            if len(self.all) > 1:
                self._look(self.all[0])

    def reached(self, who: Who) -> bool:
        """Whether its token at the divergence is known, or there is nothing to compare it with."""
        if self.at is None:
            return len(self.all) < 2
        return len(self._tokens.get(who, ())) > self.at or who in self._ended

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
        if at >= len(received):
            return None
        token = received[at]
        return token if isinstance(token, int) else token.token

    def divergence(self, who: Who) -> Divergence[Who]:
        """The divergence for one reply, based on the tokens received from the others."""
        assert self.at is not None
        received, token = self._tokens.get(who, ()), self._token(who, self.at)
        own = received[self.at] if token is not None else None
        known = own if isinstance(own, TokenLogprob) else None
        likely = dict(known.top) if known else {}
        others = []
        for other in self.all:
            theirs = self._token(other, self.at)
            if other is not who and self.reached(other) and theirs != token:
                value = likely.get(theirs) if theirs is not None else None
                others.append(OtherToken(other, theirs, None if value is None else math.exp(value)))
        return Divergence(self.at, token, math.exp(known.logprob) if known else None, tuple(others))
