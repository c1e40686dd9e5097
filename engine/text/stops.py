"""Detection of stop strings across token boundaries."""

import copy
from collections.abc import Sequence
from typing import Self


class StopFinder:
    """Passes text on until a stop string is complete, and holds back only what may become one.

    The first complete stop wins; of several that end at the same character, the longest. The result does not
    depend on how the text is cut into pieces.
    """

    __slots__ = ("_fallbacks", "_firsts", "_held", "_include", "_matched", "_out", "_stops", "hit")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._fallbacks = tuple(_fallback(stop) for stop in self._stops)
        self._include = include
        self._matched = [0] * len(self._stops)  # length of each stop's prefix that the text ends with
        self._held = ""
        self._out = 0  # characters of `_held` that have already been emitted
        self.hit: str | None = None

    def prime(self, text: str) -> None:
        """Set text emitted before the first push. A stop may start in it; one that ends in it is ignored."""
        for letter in text:
            if self._advance(letter):
                self._matched = [0] * len(self._stops)
        self._held = text[len(text) - max(self._matched, default=0) :]
        self._out = len(self._held)

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text. Returns the text that can be emitted, and the stop string if one is complete."""
        if self.hit is not None:
            return "", self.hit
        if not self._held and self._firsts.isdisjoint(text):
            return text, None
        for at, letter in enumerate(text, len(self._held) + 1):
            if hit := self._advance(letter):
                self.hit = hit
                shown = (self._held + text)[self._out : at if self._include else at - len(hit)]
                self._held = ""
                return shown, hit
        whole = self._held + text
        border = len(whole) - max(self._matched)
        shown, self._held = whole[self._out : border], whole[border:]
        self._out = max(0, self._out - border)
        return shown, None

    def flush(self) -> str:
        """Return the text that was held back."""
        text, self._held, self._out = self._held[self._out :], "", 0
        self._matched = [0] * len(self._stops)
        return text

    def copy(self) -> Self:
        clone = copy.copy(self)
        clone._matched = self._matched.copy()
        return clone

    def _advance(self, letter: str) -> str:
        """Match one more character. Returns the longest stop that it completes, or an empty string."""
        hit = ""
        for n, stop in enumerate(self._stops):
            matched, fallback = self._matched[n], self._fallbacks[n]
            while matched and stop[matched] != letter:
                matched = fallback[matched - 1]
            matched += stop[matched] == letter
            self._matched[n] = matched
            if matched == len(stop) > len(hit):
                hit = stop
        return hit


def _fallback(stop: str) -> list[int]:
    """Return the Knuth-Morris-Pratt table: the position to resume at after a mismatch."""
    table, matched = [0] * len(stop), 0
    for n in range(1, len(stop)):
        while matched and stop[matched] != stop[n]:
            matched = table[matched - 1]
        matched += stop[matched] == stop[n]
        table[n] = matched
    return table
