"""Follows one reply through its grammar."""

import re
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

_MISFIT = "satisfy the grammar"  # what llguidance says of a token that is not the grammar's


class GrammarMatcher:
    """Which tokens may come next: a function of those before, so another guide that reads them is equal."""

    def __init__(self, matcher: LLMatcher, vocab: int, start: int = 0) -> None:
        self._matcher, self._vocab = matcher, vocab
        self._bits = np.zeros(0, np.uint8)
        self._read = start  # of the request's tokens
        self.may_end = False
        self.error = ""  # why nothing can come any more, if so
        self.fault = "grammar"  # which parameter is to blame then
        self._look()

    def starting(self, start: int) -> Self:
        """Another one that has read nothing, for a request whose reply begins there."""
        twin = object.__new__(type(self))
        twin._matcher, twin._vocab, twin._bits = self._matcher.deep_copy(), self._vocab, self._bits
        twin._read, twin.may_end, twin.error, twin.fault = start, self.may_end, self.error, self.fault
        return twin

    @property
    def over(self) -> bool:
        """Whether the text is whole, and nothing could follow it."""
        return self.may_end and not self._bits.any()

    def read(self, tokens: Sequence[int]) -> None:
        """Catches up with a request's tokens."""
        new = list(tokens[self._read :])
        if new and not self.error:
            self._read += len(new)
            if self._matcher.consume_tokens(new):
                self._look()
            elif _MISFIT in (why := self._matcher.get_error()):
                self._give_up("what is said does not keep to the grammar")
            else:
                self._overwhelmed(why)

    def allowed(self, enders: Iterable[int], *, early: bool) -> np.ndarray:
        """A bit for each token, the lowest first. Those that end the reply may come where the text is whole.

        `early`: it is shorter than it has to be.
        """
        bits = self._bits.copy()
        ends = self.may_end and not early
        for token in (each for each in enders if each < self._vocab):
            byte, bit = divmod(token, 8)
            bits[byte] = bits[byte] | 1 << bit if ends else bits[byte] & (0xFF ^ 1 << bit)
        if not self.error and not bits.any():
            if self._bits.any():
                self.error = "no token is left: each that the grammar goes on with would end the reply"
                self.fault = "stop_ids"
            else:
                self.error = "no token that the model may say goes on with the grammar"
        return bits

    def _look(self) -> None:
        mask = allocate_token_bitmask(1, self._vocab + 1)
        fill_next_token_bitmask(self._matcher, mask)
        bits = mask[0].view(np.uint8)
        end, bit = divmod(self._vocab, 8)
        self.may_end = bool(bits[end] >> bit & 1)
        bits[end] &= 0xFF ^ 1 << bit
        self._bits = bits[: -(-self._vocab // 8)]
        if self._matcher.is_error():
            self._overwhelmed(self._matcher.get_error())

    def _overwhelmed(self, why: str) -> None:
        self._give_up(f"the grammar became too much: {reason(why)}")

    def _give_up(self, why: str) -> None:
        self._bits, self.may_end, self.error = np.zeros_like(self._bits), False, why


def reason(text: str) -> str:
    """The sentence of llguidance's message that says what is wrong, without where in its own form of it."""
    lines = [line.strip() for line in text.partition("<non-verbose/>")[0].splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "")
    told = re.sub(r"^(error: |at \d+\(\d+\): )", "", told)
    return told.partition(" Enable 'coerce_one_of'")[0].rstrip(".")
