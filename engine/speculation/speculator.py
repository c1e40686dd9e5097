"""Decides who drafts what, and learns from what became of it. Tokens are integers here; no model is near."""

from dataclasses import dataclass, field
from typing import Protocol

from engine.api.params import MAX_DRAFT
from engine.api.request import Request
from engine.api.snapshot import Speculation
from engine.scheduling.step import Drafts, Step
from engine.speculation.gain import Judge, Prices, Tally
from engine.speculation.ngram import NgramIndex
from engine.speculation.suffix import ReplyIndex, SuffixIndex

LACKS = {
    "draft": "has no draft model here, neither of its own nor one that the engine was started with (--draft)",
    "exit": "was not trained to leave early: its config.json names no early_exit_layers",
}
WINDOWED = "a small model cannot catch up on tokens that have left the kv_window"
FIRST, MODEL_FIRST = 2, 1  # tokens that a row drafts at first, and after a rest: a try is to cost little
MODEL_MOST = 8  # the most that are worth a small model's time
READ = 1024  # tokens that an index takes in at once: a long prompt must not hold up a step


class Index(Protocol):
    """What a row's drafts are found in."""

    def read(self, tokens: list[int], most: int) -> bool: ...

    def propose(self, tokens: list[int], most: int) -> tuple[int, ...]: ...


@dataclass(slots=True)
class Drafting:
    """One request's speculation."""

    kind: str
    index: Index | None  # None: the runner drafts
    judge: Judge
    length: int  # what it drafts next: more after a run that stood, less after one that fell
    tally: Tally = field(default_factory=Tally)

    @property
    def first(self) -> int:
        return MODEL_FIRST if self.index is None else FIRST


@dataclass(slots=True)
class Speculator:
    """One an engine. Every request that asks for it has a record here while it is alive."""

    prices: Prices = field(default_factory=Prices)
    tally: Tally = field(default_factory=Tally)  # of all requests so far
    _replies: ReplyIndex = field(default_factory=ReplyIndex)
    _rows: dict[int, Drafting] = field(default_factory=dict)
    _newest: dict[str, Judge] = field(default_factory=dict)  # by kind: of the row that came last
    _plain_step: bool = False  # the step being planned goes without drafts, to be compared with

    def begin_step(self, rows: int) -> None:
        self._plain_step = self.prices.wants_plain(rows)

    def waits(self, request: Request) -> bool:
        """Whether a row whose newest token is still on the device should be left out of this step."""
        return not self._plain_step and self._drafting(request).judge.on

    def propose(self, request: Request, most: int) -> Drafts | None:
        """Drafts for a row whose tokens are all here. None: it takes a plain step."""
        drafting = self._drafting(request)
        if self._plain_step or not drafting.judge.on:
            if drafting.index is not None:
                drafting.index.read(request.tokens, READ)
            return None
        most = min(most, request.params.draft_tokens or drafting.length)
        if drafting.index is None:
            return Drafts(drafting.kind, most, (), request.stamp) if most > 0 else None
        if not drafting.index.read(request.tokens, READ) or most < 1:
            return None
        found = drafting.index.propose(request.tokens, most)
        return Drafts(drafting.kind, len(found), found, request.stamp) if found else None

    def saw_run(self, request: Request, drafted: int, accepted: int, rows: int) -> None:
        """A verification is over. `rows`: how many decoded in its step."""
        drafting = self._rows.get(request.id)
        price = self.prices.of(drafting.kind, rows) if drafting else 0.0
        self.tally.saw(drafted, accepted, price, rows)
        if drafting is None:
            return
        drafting.tally.saw(drafted, accepted, price, rows)
        most = MODEL_MOST if drafting.index is None else MAX_DRAFT
        change = 2 if accepted == drafted else -1
        drafting.length = max(1, min(drafting.length + change, most))
        drafting.judge.saw(drafted, accepted, price, rows)
        if not drafting.judge.on:
            drafting.length = drafting.first

    def saw_token(self, request: Request) -> None:
        """One token came without drafts."""
        drafting = self._rows.get(request.id)
        if drafting is not None and not drafting.judge.on:
            drafting.judge.rested(1)

    def saw_step(self, step: Step, seconds: float) -> None:
        """What a step without prompts has cost."""
        if not step.drafts:
            self.prices.saw_plain(len(step.rows), seconds)
            return
        kinds = {drafts.kind for drafts in step.drafts.values()}
        if len(kinds) == 1:  # of a mixed step nobody can say who cost what
            drafted = sum(drafts.length for drafts in step.drafts.values())
            self.prices.saw_drafts(kinds.pop(), len(step.rows), drafted, seconds)

    def forget(self, request: Request) -> None:
        """It has ended. What it said may be said again."""
        drafting = self._rows.pop(request.id, None)
        if drafting is not None and drafting.kind == "suffix":
            self._replies.add(request.salt, request.tokens[request.prompt_len :])

    def forget_replies(self) -> None:
        self._replies = ReplyIndex()

    def clear(self) -> None:
        """All requests are gone at once."""
        self._rows.clear()

    def total(self) -> Speculation:
        return _told("", True, self.tally, self.tally.gain)

    def view(self, request: Request) -> Speculation | None:
        drafting = self._rows.get(request.id)
        if drafting is None:
            return None
        return _told(drafting.kind, drafting.judge.on, drafting.tally, drafting.judge.gain)

    def _drafting(self, request: Request) -> Drafting:
        drafting, kind = self._rows.get(request.id), request.params.speculate
        if drafting is None or drafting.kind != kind:
            drafting = Drafting(kind, self._index(request), self._judge(kind), 0)
            drafting.length = drafting.first
            self._rows[request.id] = drafting
        return drafting

    def _index(self, request: Request) -> Index | None:
        match request.params.speculate:
            case "ngram":
                return NgramIndex()
            case "suffix":
                return SuffixIndex(self._replies.of(request.salt))
        return None

    def _judge(self, kind: str) -> Judge:
        """A row begins at rest where the one before it has lost."""
        before = self._newest.get(kind)
        judge = self._newest[kind] = before.heir() if before else Judge()
        return judge


def _told(kind: str, on: bool, tally: Tally, gain: float) -> Speculation:
    return Speculation(kind, on, tally.verifications, tally.drafted, tally.accepted, gain)
