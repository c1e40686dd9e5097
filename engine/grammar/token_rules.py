"""The tokens that a request allows or bans by id and by word, alone or beside a grammar."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.api.params import SamplingParams
from engine.api.request import GrammarState
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class TokenRules:
    """`allowed_token_ids` and `bad_words`, for all requests with the same ones."""

    bits: np.ndarray  # of the tokens that are ever allowed, the lowest first
    banned: tuple[tuple[int, ...], ...]  # sequences whose last token must not follow the others
    fault: str  # the parameter to name if no token is left

    @classmethod
    def of(cls, params: SamplingParams, tokenizer: Tokenizer, vocab: int) -> "TokenRules":
        sequences = [each for word in params.bad_words for each in _spellings(word, tokenizer)]
        allowed = np.ones(vocab, bool)
        if params.allowed_token_ids is not None:
            allowed[:] = False
            allowed[[each for each in params.allowed_token_ids if each < vocab]] = True  # others are refused
        allowed[[each[0] for each in sequences if len(each) == 1]] = False
        longer = tuple(dict.fromkeys(each for each in sequences if len(each) > 1))
        fault = "bad_words" if params.allowed_token_ids is None else "allowed_token_ids"
        return cls(np.packbits(allowed, bitorder="little"), longer, fault)

    @property
    def reach(self) -> int:
        """How many tokens back the rules look."""
        return max((len(each) - 1 for each in self.banned), default=0)


class RuledState:
    """A reply's position in the rules and, if there is one, in a grammar: what both allow is allowed."""

    def __init__(self, rules: TokenRules, guide: GrammarState | None, start: int) -> None:
        """`start`: where the reply begins in the request's tokens. Words are not matched before it."""
        self._rules, self._guide, self._start = rules, guide, start
        self._tail: tuple[int, ...] = ()
        self._error = ""

    @property
    def error(self) -> str:
        return self._error or (self._guide.error if self._guide else "")

    @property
    def fault(self) -> str:
        return self._guide.fault if self._guide and self._guide.error else self._rules.fault

    @property
    def over(self) -> bool:
        return self._guide is not None and self._guide.over

    def read(self, tokens: Sequence[int]) -> None:
        if self._guide:
            self._guide.read(tokens)
        self._tail = tuple(tokens[max(self._start, len(tokens) - self._rules.reach) :])

    def allowed(self, enders: Iterable[int], *, early: bool) -> np.ndarray:
        bits = self._rules.bits.copy()
        stops = list(enders)
        if self._guide:
            bits &= self._guide.allowed(stops, early=early)
        for *before, last in self._rules.banned:
            if self._tail[-len(before) :] == tuple(before):
                _clear(bits, last)
        if early:
            for token in stops:
                _clear(bits, token)
        if not self.error and not bits.any():
            self._error = "no token is left that the request allows"
        return bits


def _clear(bits: np.ndarray, token: int) -> None:
    byte, bit = divmod(token, 8)
    if byte < len(bits):
        bits[byte] &= 0xFF ^ 1 << bit


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the tokens of a word, and of the same word after a blank.

    If the blank is a token of its own, the first spelling covers the second. vLLM leaves out the second
    also where it has another number of tokens, as when " block" is one token and "block" two.
    """
    plain, blank = (tuple(tokenizer.encode(lead + word.lstrip())) for lead in ("", " "))
    return [each for each in dict.fromkeys((plain, blank)) if each and each[1:] != plain]
