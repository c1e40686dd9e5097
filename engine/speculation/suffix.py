"""Drafts by the longest match: a suffix automaton over the request's tokens and recent replies.

The automaton grows by one token at a time and contains every substring of its text. Following a request's
tokens through it costs a few steps per token, and always yields their longest suffix that occurs in the text.
"""

from collections import OrderedDict
from collections.abc import Sequence

from engine.speculation.ngram import copied

SHORTEST = 2  # tokens that must match
REMEMBERED = 32_768  # tokens of replies kept per owner; beyond it the older half is dropped
OWNERS = 64  # prefix cache owners whose replies are kept


class Automaton:
    """A suffix automaton. A state is an index into the lists."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]  # suffix link: the state of the longest suffix that occurs at more positions
        self.length = [0]  # length of the state's longest substring
        self.end = [0]  # position in the text after its first occurrence
        self._whole = 0  # the state of the whole text

    def add(self, token: int) -> None:
        self.text.append(token)
        fresh = self._state({}, self.length[self._whole] + 1, len(self.text))
        at, self._whole = self._whole, fresh
        while at >= 0 and token not in self.next[at]:
            self.next[at][token] = fresh
            at = self.link[at]
        if at < 0:
            self.link[fresh] = 0
            return
        after = self.next[at][token]
        if self.length[after] == self.length[at] + 1:
            self.link[fresh] = after
            return
        # The state's substrings now end at different positions: the shorter ones get a separate state.
        split = self._state(dict(self.next[after]), self.length[at] + 1, self.end[after])
        self.link[split] = self.link[after]
        self.link[after] = self.link[fresh] = split
        while at >= 0 and self.next[at].get(token) == after:
            self.next[at][token] = split
            at = self.link[at]

    def _state(self, following: dict[int, int], length: int, end: int) -> int:
        self.next.append(following)
        self.length.append(length)
        self.end.append(end)
        self.link.append(-1)
        return len(self.next) - 1


class Match:
    """The longest suffix of a growing text that an automaton contains. The automaton may grow, too."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton, self.length = automaton, 0
        self._state = 0

    def follow(self, token: int) -> None:
        automaton, state, length = self.automaton, self._settled(), self.length
        while state and token not in automaton.next[state]:
            state = automaton.link[state]
            length = automaton.length[state]
        if (after := automaton.next[state].get(token)) is not None:
            state, length = after, length + 1
        self._state, self.length = state, length

    def after(self, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that followed the longest match."""
        return copied(self.automaton.text, self.automaton.end[self._settled()], most)

    def _settled(self) -> int:
        """The match's state, which may have been split since it was reached."""
        link, length = self.automaton.link, self.automaton.length
        while self._state and self.length <= length[link[self._state]]:
            self._state = link[self._state]
        return self._state


class ReplyIndex:
    """Recent replies by owner of the prefix cache, so that drafts never reveal another owner's text."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._half = remembered // 2
        self._of: OrderedDict[bytes, list[Automaton]] = OrderedDict()

    def of(self, owner: bytes) -> list[Automaton]:
        """Return the older half, if any, and the half that is growing."""
        if owner not in self._of:
            self._of[owner] = [Automaton()]
            if len(self._of) > OWNERS:
                self._of.popitem(last=False)
        self._of.move_to_end(owner)
        return self._of[owner]

    def add(self, owner: bytes, reply: Sequence[int]) -> None:
        halves = self.of(owner)
        if len(halves[-1].text) + len(reply) > self._half and halves[-1].text:
            halves[:] = [halves[-1], Automaton()]
        growing = halves[-1]
        for token in reply[: self._half]:
            growing.add(token)
        growing.add(-1)  # a separator, so that no match crosses the end of a reply


class SuffixIndex:
    """Drafts for one request from its own tokens and from recent replies."""

    def __init__(self, replies: list[Automaton]) -> None:
        self._own = Automaton()
        self._matches = [Match(self._own), *map(Match, reversed(replies))]
        self._seen = 0

    def read(self, tokens: Sequence[int], most: int) -> bool:
        end = min(len(tokens), self._seen + most)
        for at in range(self._seen, end):
            for match in self._matches:
                match.follow(tokens[at])  # before adding it, so that it matches earlier text
            self._own.add(tokens[at])
        self._seen = end
        return end == len(tokens)

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """Return the tokens after the longest match. On a tie, the request's own text wins."""
        best = max(self._matches, key=lambda match: match.length)
        if best.length < SHORTEST:
            return ()
        drafts = best.after(min(most, 2 * best.length))
        return drafts[: drafts.index(-1)] if -1 in drafts else drafts
