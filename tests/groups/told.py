"""What a sink is told of a request with several replies, and engines for beams."""

from collections import defaultdict
from dataclasses import dataclass, field

from engine.events import Delta, TokenLogprob
from engine.request import Finish


@dataclass
class One:
    """One reply as it was told."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    tail: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    error: str = ""
    score: float | None = None


class Told:
    """All of it, by choice."""

    def __init__(self) -> None:
        self.choices: dict[int, One] = defaultdict(One)
        self.over = False
        self.deltas: list[Delta] = []

    def __call__(self, delta: Delta) -> None:
        assert not self.over, "a delta after the last one"
        self.deltas.append(delta)
        one = self.choices[delta.choice]
        assert one.finish is None, "a delta after the last one of a choice"
        one.tokens += delta.tokens
        one.text += delta.text
        one.tail = delta.tail
        one.logprobs += delta.logprobs
        one.finish, one.error, one.score = delta.finish, delta.error, delta.score
        self.over = delta.last

    @property
    def first(self) -> One:
        return self.choices[0]

    @property
    def replies(self) -> list[list[int]]:
        return [one.tokens for _, one in sorted(self.choices.items())]
