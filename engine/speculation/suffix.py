"""Drafts by the longest match: a suffix automaton over what was said, however long the match is.

It is grown a token at a time and knows every run of tokens in its text. Following a request's tokens through
it costs a few steps a token, and at any moment tells the longest end of them that the text holds.
"""

from collections import OrderedDict
from collections.abc import Sequence

from engine.speculation.ngram import copied

SHORTEST = 2  # tokens that must match
REMEMBERED = 32_768  # tokens of replies after which the older half is forgotten
OWNERS = 64  # of prefix caches, whose replies are kept apart


class Automaton:
    """The smallest machine that knows all runs of its text, as columns: a state is a number."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]  # the state of the longest shorter run that ends in more places
        self.length = [0]  # the longest run of the state
        self.end = [0]  # where in the text a run of the state first ended
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
        # The state's runs now end in different places: the shorter ones move to a state of their own.
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
    """How much of a growing text's end an automaton knows; the automaton may grow as well."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton, self.length = automaton, 0
        self._state = 0

    def follow(self, token: int) -> None:
        known, state, length = self.automaton, self._settled(), self.length
        while state and token not in known.next[state]:
            state = known.link[state]
            length = known.length[state]
        if (after := known.next[state].get(token)) is not None:
            state, length = after, length + 1
        self._state, self.length = state, length

    def after(self, most: int) -> tuple[int, ...]:
        """What followed the longest match."""
        return copied(self.automaton.text, self.automaton.end[self._settled()], most)

    def _settled(self) -> int:
        """The match's state, which may have been split since it was reached."""
        link, length = self.automaton.link, self.automaton.length
        while self._state and self.length <= length[link[self._state]]:
            self._state = link[self._state]
        return self._state


class ReplyIndex:
    """What was said lately, by the owner of the prefix cache: nobody's drafts tell of another's text."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._half = remembered // 2
        self._of: OrderedDict[bytes, list[Automaton]] = OrderedDict()

    def of(self, owner: bytes) -> list[Automaton]:
        """The older half, if there is one, then the half that grows."""
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
        growing.add(-1)  # no token: nothing follows the end of one reply into the next


class SuffixIndex:
    """Of one request: its own tokens, and the replies that the engine has given."""

    def __init__(self, replies: list[Automaton]) -> None:
        self._own = Automaton()
        self._matches = [Match(self._own), *map(Match, reversed(replies))]
        self._seen = 0

    def read(self, tokens: Sequence[int], most: int) -> bool:
        end = min(len(tokens), self._seen + most)
        for at in range(self._seen, end):
            for match in self._matches:
                match.follow(tokens[at])  # its own text does not hold this token yet, so it matches what was
            self._own.add(tokens[at])
        self._seen = end
        return end == len(tokens)

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """After the longest match; the request's own text goes before others of the same length."""
        best = max(self._matches, key=lambda match: match.length)
        if best.length < SHORTEST:
            return ()
        drafts = best.after(min(most, 2 * best.length))
        return drafts[: drafts.index(-1)] if -1 in drafts else drafts
