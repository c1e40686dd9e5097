"""The state of one reply in its grammar."""

import re
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

_LONGEST = 300  # characters of a reason, which may quote the grammar


class GrammarMatcher:
    """The tokens allowed next. They depend only on the tokens read, so any matcher that reads them agrees."""

    def __init__(self, matcher: LLMatcher, vocab: int, start: int = 0) -> None:
        self._matcher, self._vocab = matcher, vocab
        self._bits = np.zeros(0, np.uint8)
        self._read = start  # position in the request's tokens
        self.may_end = False
        self.error = ""  # why no token is allowed, if so
        self.fault = "grammar"  # the parameter that caused the error
        self._look()

    def starting(self, start: int) -> Self:
        """Return a fresh copy for a request whose reply begins at token `start`."""
        clone = object.__new__(type(self))
        clone._matcher, clone._vocab, clone._bits = self._matcher.deep_copy(), self._vocab, self._bits
        clone._read, clone.may_end, clone.error, clone.fault = start, self.may_end, self.error, self.fault
        return clone

    @property
    def over(self) -> bool:
        """Whether the text is complete and no token may follow."""
        return self.may_end and not self._bits.any()

    def read(self, tokens: Sequence[int]) -> None:
        """Consume the request's new tokens."""
        new = list(tokens[self._read :])
        if new and not self.error:
            self._read += len(new)
            if self._matcher.try_consume_tokens(new) == len(new):
                self._look()
            elif self._matcher.is_error():
                self._too_complex(self._matcher.get_error())
            else:
                self._give_up("the reply does not match the grammar")

    def allowed(self, enders: Iterable[int], *, early: bool) -> np.ndarray:
        """Return a bit per token, the lowest first. Stop tokens are allowed where the text is complete.

        `early`: the reply is still shorter than min_tokens, so it must not end.
        """
        bits = self._bits.copy()
        ends = self.may_end and not early
        for token in (each for each in enders if each < self._vocab):
            byte, bit = divmod(token, 8)
            bits[byte] = bits[byte] | 1 << bit if ends else bits[byte] & (0xFF ^ 1 << bit)
        if not self.error and not bits.any():
            if self._bits.any():
                self.error = "no token is left: every token that the grammar allows is a stop token"
                self.fault = "stop_ids"
            else:
                self.error = "no token of the model's vocabulary matches the grammar here"
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
            self._too_complex(self._matcher.get_error())

    def _too_complex(self, why: str) -> None:
        self._give_up(f"the grammar became too complex: {reason(why)}")

    def _give_up(self, why: str) -> None:
        self._bits, self.may_end, self.error = np.zeros_like(self._bits), False, why


def reason(text: str) -> str:
    """Extract the reason from llguidance's message, without positions in its internal grammar."""
    lines = [line.strip() for line in text.partition("<non-verbose/>")[0].splitlines() if line.strip()]
    found = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "")
    found = re.sub(r"^(error: |at \d+\(\d+\): )", "", found)
    found = found.partition(" Enable 'coerce_one_of'")[0].rstrip(".")
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
