"""Drafts by prompt lookup: the tokens that followed the last occurrence of the same n-gram in the request."""

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2  # tokens that must match; longer n-grams are tried first


class NgramIndex:
    """The position after the last occurrence of each n-gram in a request's tokens."""

    def __init__(self) -> None:
        self._at: dict[tuple[int, ...], int] = {}  # an n-gram: the position after it
        self._seen = 0

    def read(self, tokens: Sequence[int], most: int) -> bool:
        """Index up to `most` new tokens. Returns whether all tokens are indexed."""
        end = min(len(tokens), self._seen + most)
        for at in range(self._seen, end):
            for length in range(SHORTEST, LONGEST + 1):
                if at >= length:
                    self._at[tuple(tokens[at - length : at])] = at
        self._seen = end
        return end == len(tokens)

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        for length in range(LONGEST, SHORTEST - 1, -1):
            if length <= len(tokens) and (at := self._at.get(tuple(tokens[-length:]))) is not None:
                return copied(tokens, at, most)
        return ()


def copied(tokens: Sequence[int], at: int, most: int) -> tuple[int, ...]:
    """Return `most` tokens from position `at`. If the tokens end before that, repeat the copied part."""
    found = list(tokens[at : at + most])
    period = len(found)
    while period and len(found) < most:
        found.append(found[-period])
    return tuple(found)
