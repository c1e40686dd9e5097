"""Decides which rows draft how many tokens, and adapts to the results. It runs no model."""

from dataclasses import dataclass, field
from typing import Protocol

from engine.api.params import MAX_DRAFT
from engine.api.request import Request
from engine.api.speculation import Speculation
from engine.scheduling.step import Drafts, Step
from engine.speculation.gain import Judge, Prices, Tally
from engine.speculation.ngram import NgramIndex
from engine.speculation.suffix import ReplyIndex, SuffixIndex

LACKS = {
    "draft": "has no built-in draft model, and the engine was started without --draft",
    "exit": "has no early exits; its config.json lists no early_exit_layers",
}
WINDOWED = "a draft model cannot read tokens that have left the kv_window or the kv_budget"
FIRST, MODEL_FIRST = 2, 1  # tokens a row drafts at first and after a pause, so that an attempt costs little
MODEL_MOST = 8  # the most tokens worth drafting with a model
HEADS_LEAST = 3  # heads guess all at once, and a CPU computes a step of four rows as fast as one of two
BEHIND = 32  # unread tokens from which on a draft model's reading takes noticeable time
READ = 1024  # tokens an index reads at once, so that a long prompt does not delay a step


class Index(Protocol):
    """An index in which a row's drafts are looked up."""

    def read(self, tokens: list[int], most: int) -> bool: ...

    def propose(self, tokens: list[int], most: int) -> tuple[int, ...]: ...


@dataclass(slots=True)
class Drafting:
    """One request's speculation."""

    kind: str
    index: Index | None  # None: the runner drafts
    judge: Judge
    length: int  # tokens of the next draft: grows if all are accepted, else shrinks
    unread: int  # tokens that a draft model reads before its next draft
    tally: Tally = field(default_factory=Tally)

    @property
    def first(self) -> int:
        return MODEL_FIRST if self.index is None else FIRST

    def view(self) -> Speculation:
        return _speculation(self.kind, self.judge.on, self.tally)


@dataclass(slots=True)
class Speculator:
    """The speculation of one engine, with a record of each live request that uses it."""

    prices: Prices = field(default_factory=Prices)
    tally: Tally = field(default_factory=Tally)  # of all requests so far
    most: dict[str, int] = field(default_factory=dict)  # by kind: the limit of its drafts, if it has one
    _replies: ReplyIndex = field(default_factory=ReplyIndex)
    _rows: dict[int, Drafting] = field(default_factory=dict)
    _newest: dict[str, Judge] = field(default_factory=dict)  # by kind: of the newest row
    _plain_step: bool = False  # the step being planned runs without drafts, as a baseline

    def begin_step(self, rows: int) -> None:
        self._plain_step = self.prices.wants_plain(rows)

    def waits(self, request: Request) -> bool:
        """Whether to leave a row out of this step until its newest token has arrived from the device."""
        return not self._plain_step and self._drafting(request).judge.on

    def propose(self, request: Request, most: int) -> Drafts | None:
        """Return drafts for a row whose tokens have all arrived. None: it decodes without drafts."""
        drafting = self._drafting(request)
        if self._plain_step or not drafting.judge.on:
            if drafting.index is not None:
                drafting.index.read(request.tokens, READ)
            return None
        limit = self.most.get(drafting.kind, MAX_DRAFT)
        most = min(most, request.params.draft_tokens or drafting.length, limit)
        if drafting.index is None:
            return Drafts(drafting.kind, most, (), request.stamp) if most > 0 else None
        if not drafting.index.read(request.tokens, READ) or most < 1:
            return None
        found = drafting.index.propose(request.tokens, most)
        return Drafts(drafting.kind, len(found), found, request.stamp) if found else None

    def observe_run(self, request: Request, drafted: int, accepted: int, rows: int) -> None:
        """Record a verification. `rows`: the number of rows that decoded in its step."""
        drafting = self._rows.get(request.id)
        price = self.prices.known(drafting.kind, rows) if drafting else None
        self.tally.observe(drafted, accepted, price, rows)
        if drafting is None:
            return
        drafting.tally.observe(drafted, accepted, price, rows)
        drafting.unread = 0
        most = MODEL_MOST if drafting.index is None else MAX_DRAFT
        change = 2 if accepted == drafted else -1
        most = min(most, self.most.get(drafting.kind, most))
        drafting.length = max(self._least(drafting), min(drafting.length + change, most))
        drafting.judge.observe(drafted, accepted, price or 0.0, rows)
        if not drafting.judge.on:
            drafting.length = max(drafting.first, self._least(drafting))

    def observe_token(self, request: Request) -> None:
        """Record a token decoded without drafts."""
        if (drafting := self._rows.get(request.id)) is None:
            return
        self.tally.plain += 1
        drafting.tally.plain += 1
        drafting.unread += 1
        if not drafting.judge.on:
            drafting.judge.count_plain(1)

    def observe_step(self, step: Step, seconds: float) -> None:
        """Record the time of a step without prefill."""
        if not step.drafts:
            self.prices.observe_plain(len(step.rows), seconds)
            return
        kinds = {drafts.kind for drafts in step.drafts.values()}
        if len(kinds) == 1:  # the cost of a mixed step cannot be divided
            drafted, kind = sum(drafts.length for drafts in step.drafts.values()), kinds.pop()
            self._count_reading(step, kind, drafted, seconds)
            self.prices.observe_drafts(kind, len(step.rows), drafted, seconds)

    def _count_reading(self, step: Step, kind: str, drafted: int, seconds: float) -> None:
        """Count the time in which a draft model read prompts: the price of a draft has no such time."""
        rows = [self._rows[request] for request in step.drafts if request in self._rows]
        if behind := [row for row in rows if row.index is None and row.unread > BEHIND]:
            took = len(step.rows) * self.prices.beyond(kind, len(step.rows), drafted, seconds)
            self.tally.took += took
            for row in behind:
                row.tally.took += took / len(behind)

    def forget(self, request: Request) -> None:
        """Drop an ended request. Its reply is indexed for later requests."""
        drafting = self._rows.pop(request.id, None)
        if drafting is not None and drafting.kind == "suffix":
            self._replies.add(request.salt, request.tokens[request.prompt_len :])

    def forget_replies(self) -> None:
        self._replies = ReplyIndex()

    def clear(self) -> None:
        """Drop all requests at once."""
        self._rows.clear()

    def restart(self) -> None:
        """Drop all requests, and what was measured."""
        self._rows.clear()
        self._newest.clear()
        self.prices, self.tally = Prices(), Tally()

    def total(self) -> Speculation:
        return _speculation("", True, self.tally)

    def view(self, request: Request) -> Speculation | None:
        drafting = self._rows.get(request.id)
        return None if drafting is None else drafting.view()

    def _drafting(self, request: Request) -> Drafting:
        drafting, kind = self._rows.get(request.id), request.params.speculate
        if drafting is None or drafting.kind != kind:
            drafting = Drafting(kind, self._index(request), self._judge(kind), 0, len(request.tokens))
            drafting.length = max(drafting.first, self._least(drafting))
            self._rows[request.id] = drafting
            request.drafts = drafting.view
        return drafting

    def _least(self, drafting: Drafting) -> int:
        """The fewest tokens to draft."""
        return min(HEADS_LEAST, self.most.get(drafting.kind, 1))

    def _index(self, request: Request) -> Index | None:
        match request.params.speculate:
            case "ngram":
                return NgramIndex()
            case "suffix":
                return SuffixIndex(self._replies.of(request.salt))
        return None

    def _judge(self, kind: str) -> Judge:
        """Return a new row's judge, which starts paused if the previous row lost."""
        before = self._newest.get(kind)
        judge = self._newest[kind] = before.successor() if before else Judge()
        return judge


def _speculation(kind: str, on: bool, tally: Tally) -> Speculation:
    return Speculation(kind, on, tally.verifications, tally.drafted, tally.accepted, tally.gain, tally.plain)
