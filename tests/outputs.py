"""Recorders for the replies to a request, and a check that an engine's transfers are idle."""

from collections import defaultdict
from dataclasses import dataclass, field

from engine.api.events import Delta, TokenLogprob
from engine.api.request import Finish
from engine.scheduling.invariants import check_names
from engine.serving.engine import Engine


@dataclass
class Output:
    """A sink that records one reply."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    tail: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: Delta | None = None

    def __call__(self, delta: Delta) -> None:
        assert self.last is None, "a delta after the last one"
        self.tokens += delta.tokens
        self.text += delta.text
        self.tail = delta.tail
        self.logprobs += delta.logprobs
        if delta.finish:
            self.last = delta

    @property
    def finish(self) -> Finish | None:
        return self.last.finish if self.last else None

    @property
    def error(self) -> str:
        return self.last.error if self.last else ""

    @property
    def fault(self) -> str:
        return self.last.fault if self.last else ""

    @property
    def score(self) -> float | None:
        return self.last.score if self.last else None

    @property
    def reply(self) -> tuple[list[int], str, Finish | None]:
        return self.tokens, self.text, self.finish


class Outputs:
    """A sink that records all replies to a request, by choice."""

    def __init__(self) -> None:
        self.choices: dict[int, Output] = defaultdict(Output)
        self.over = False
        self.deltas: list[Delta] = []

    def __call__(self, delta: Delta) -> None:
        assert not self.over, "a delta after the last one"
        self.deltas.append(delta)
        self.choices[delta.choice](delta)
        self.over = delta.last

    @property
    def first(self) -> Output:
        return self.choices[0]

    @property
    def replies(self) -> list[list[int]]:
        return [one.tokens for _, one in sorted(self.choices.items())]


def transfers_idle(engine: Engine) -> bool:
    """Whether no transfer is pending, and no tier holds blocks of a request."""
    transfers = engine.scheduler.transfers
    check_names([], transfers)  # nothing relies on a stored block
    return not transfers.pending and all(
        tier.persistent or tier.used == transfers.residence.idle(tier.name)
        for tier in transfers.tiers.values()
    )
