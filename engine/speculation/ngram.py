"""Drafts by prompt lookup: what followed the same few tokens when the request last held them."""

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2  # tokens that must agree; the longer ones are asked first


class NgramIndex:
    """Of one request's own tokens: where each short run of them was last followed by something."""

    def __init__(self) -> None:
        self._at: dict[tuple[int, ...], int] = {}  # a run of tokens: where its follower stands
        self._seen = 0

    def read(self, tokens: Sequence[int], most: int) -> bool:
        """Takes in at most so many tokens that it has not seen yet; says whether that were all."""
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
    """What stands from a place on. Where the tokens end it goes on with its own, as a loop would."""
    found = list(tokens[at : at + most])
    period = len(found)
    while period and len(found) < most:
        found.append(found[-period])
    return tuple(found)
