"""A beam search in the batch: each hypothesis is a request with its own row and shared blocks."""

from collections.abc import Callable, Sequence

import numpy as np

from engine.api.events import Delta, Ended
from engine.api.params import SamplingParams
from engine.api.request import Finish, Request
from engine.api.snapshot import BeamsView, HypothesisView
from engine.kv.window import held
from engine.scheduling import forks
from engine.scheduling.scheduler import Scheduler
from engine.serving.groups.search import BeamSearch, Continuation, SearchRules, tokens_of
from engine.serving.reply import ReplyOutput, Sink, TextStream


class BeamGroup:
    """Hypotheses run, are preempted and resume independently; the search advances when all have candidates.

    Between steps, `members` are the live hypotheses, best first. Ids of dropped hypotheses are reused, so
    that the group keeps its place in every queue.
    """

    def __init__(
        self,
        root: Request,
        written: TextStream,
        sink: Sink,
        scheduler: Scheduler,
        number: Callable[[], int],
        stop_ids: frozenset[int],
    ) -> None:
        self.id, self.arrived = root.id, root.arrived
        self.first_token_at, self.last_token_at = root.first_token_at, root.last_token_at
        self.params = root.params
        self._pending: tuple[SamplingParams, int] | None = None  # with the new maximum length
        self._scheduler, self._number, self._sink, self._stop_ids = scheduler, number, sink, stop_ids
        self.members = [root]
        self._base = len(root.tokens)  # the token count at which the search began
        self._earlier = root.generated  # tokens of the reply before that
        self._search = BeamSearch(SearchRules.of(root.params, stop_ids), root.max_len - self._base)
        self._enders = root.params.enders(stop_ids)
        self._start, self._written = written, written.copy()  # the text at the base, and up to `_certain`
        self._certain = 0  # tokens after the base that all hypotheses share
        self._streams = [written.copy()]  # the text of each live hypothesis; kept only for stop strings
        self._candidates: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._spare: list[int] = []
        self._dropped: tuple[HypothesisView, ...] = ()
        self._parents: list[int] = [0]
        self.replied = root.generated  # tokens of the reply that was sent, once the search has ended
        self.others: tuple[Ended, ...] = ()  # the replies after that one
        root.group, root.awaits = root.id, True

    def take(self, request: Request, ids: np.ndarray, values: np.ndarray) -> bool:
        """Take in the candidates of one hypothesis. Returns whether the group now has all of them."""
        count = self._search.rules.candidates  # another search in the same step may need more
        self._candidates[request.id] = ids[:count], values[:count]
        return len(self._candidates) == len(self.members)

    def advance(self) -> Finish | None:
        """Choose the hypotheses that continue. Returns why the group ends, if it does."""
        candidates = [self._candidates.pop(each.id) for each in self.members]
        ids, values = (np.stack(side) for side in zip(*candidates, strict=True))
        scores = self._search.scores()
        kept = self._search.advance(ids, values, self._stops)
        if self._search.over:
            return self._finish()
        self._reorder(kept, scores)
        fresh, text = self._settle()
        self._sink(Delta(self.id, fresh, text, tail=self._tail()))
        return None

    @property
    def generated(self) -> int:
        """Length of the reply in tokens, the same for every live hypothesis."""
        return self._earlier + self._search.length

    @property
    def length(self) -> int:
        return self._base + self._search.length

    def end(self, finish: Finish, error: str = "") -> None:
        """End the search from outside with the leading hypothesis."""
        tokens = () if error else self._leader()[self._certain :]
        text = "" if error else self._text(self._written, tokens, self._certain) + self._written.flush()
        self.replied = self._earlier + self._certain + len(tokens)
        ended = Delta(self.id, tokens, text, (), finish, error, blocks=self._held)
        self._sink(ended._replace(decoding=self._decoding))

    def view(self) -> BeamsView:
        """The live hypotheses after the certain tokens, the finished ones, and those dropped last."""
        start, scores = self._base + self._certain, self._search.scores()
        live = (
            HypothesisView(each.id, parent, score, tuple(each.tokens[start:]))
            for each, parent, score in zip(self.members, self._parents, scores, strict=True)
        )
        done = (
            HypothesisView(-1, -1, each.score, each.tokens[self._certain :]) for each in self._search.done
        )
        certain = self._earlier + self._certain
        return BeamsView(self.id, self.params.beams, certain, (*live,), (*done,), self._dropped)

    # Changed parameters

    @property
    def requested_params(self) -> SamplingParams:
        """The newest parameters, which may not apply yet."""
        return self._pending[0] if self._pending else self.params

    def retune(self, params: SamplingParams, max_len: int) -> None:
        """Apply these parameters once no hypothesis is in flight."""
        self._pending = params, max_len

    def apply_pending(self) -> tuple[Request, ReplyOutput] | None:
        """Apply pending parameters if possible. If the search ends, returns the request and its reply."""
        if self._pending is None or any(each.pending for each in self.members):
            return None
        params, max_len = self._pending
        if params.beams > 1 and self._candidates:
            return None  # those candidates were chosen for the current search
        self._pending = None
        for each in self.members:
            each.params, each.max_len = params, max_len
            each.seed = each.seed if params.seed is None else params.seed % 2**64
            self._scheduler.restamp(each)
        self.params = params
        if params.beams == 1:
            return self._end_search()
        self._search.rules, self._search.most = SearchRules.of(params, self._stop_ids), max_len - self._base
        self._enders = params.enders(self._stop_ids)
        for written in (self._start, self._written):
            written.retune(params)
        self._streams = [self._stream_of(each) for each in self.members]
        return None

    def _end_search(self) -> tuple[Request, ReplyOutput]:
        """Drop all but the best live hypothesis and continue it as an ordinary request."""
        best = self.members[0]
        rest = tuple(best.tokens[self._base + self._certain :])
        text = self._text(self._written, rest, self._certain)
        self._sink(Delta(self.id, rest, text))
        for each in self.members[1:]:
            self._scheduler.drop(each)
        if best.id == self.id:
            forks.resample_last(self._scheduler, best)
        else:
            best, parent = self._child(best, self.id), best
            forks.branch(self._scheduler, parent, best)
            self._scheduler.drop(parent)
        best.group, best.awaits, best.guided_from = -1, False, best.known
        best.first_token_at, best.last_token_at = self.first_token_at, self.last_token_at
        self._written.retune(self.params)
        return best, ReplyOutput(self._written, self._sink)

    # Steps

    def _stops(self, parent: int, token: int) -> bool:
        if not self.params.stop:
            return token in self._enders
        _, finish = self._streams[parent].copy().take(token, self.generated, full=False)
        return finish is not None

    def _reorder(self, kept: Sequence[Continuation], scores: Sequence[float]) -> None:
        """Continue each parent in place with its first token, and fork it for each further token."""
        before, first = self.members, dict[int, int]()
        for rank, each in enumerate(kept):
            first.setdefault(each.parent, rank)
        start = self._base + self._certain
        dropped = [(at, each) for at, each in enumerate(before) if at not in first]
        self._dropped = tuple(
            HypothesisView(each.id, at, scores[at], tuple(each.tokens[start:])) for at, each in dropped
        )
        for _, member in dropped:
            self._scheduler.drop(member)
        self._spare = sorted([*self._spare, *(each.id for _, each in dropped)], reverse=True)
        self.members = []
        for rank, (parent, token) in enumerate(kept):
            member = before[parent]
            if first[parent] != rank:
                id = self._spare.pop() if self._spare else self._number()
                member = self._child(member, id)
                member.tokens.append(token)
                forks.branch(self._scheduler, before[parent], member)
            self.members.append(member)
        for parent, rank in first.items():
            forks.append_token(self._scheduler, before[parent], kept[rank].token)
            if self.params.penalized:
                self._scheduler.restamp(before[parent])  # the slot's tokens have changed
        self._parents = [each.parent for each in kept]
        if self.params.stop:
            self._streams = [self._streams[parent].copy() for parent in self._parents]
            for stream, each in zip(self._streams, kept, strict=True):
                stream.take(each.token, self.generated, full=False)

    def _child(self, parent: Request, id: int) -> Request:
        return Request(
            id=id,
            tokens=list(parent.tokens),
            prompt_len=parent.prompt_len,
            params=self.params,
            seed=parent.seed,
            max_len=parent.max_len,
            arrived=parent.arrived,
            priority=parent.priority,
            deadline=parent.deadline,
            salt=parent.salt,
            adapter=parent.adapter,
            group=self.id,
            awaits=True,
            cached_tokens=parent.cached_tokens,
        )

    # Text

    def _settle(self) -> tuple[tuple[int, ...], str]:
        """The tokens and text that every hypothesis that may still be returned shares."""
        base, lead = self._base, self.members[0].tokens
        live = [each.tokens for each in self.members[1:]]
        done = [each.tokens for each in self._search.done[: self.params.n]]
        at = self._certain
        while base + at < len(lead):
            token = lead[base + at]
            if any(each[base + at] != token for each in live):
                break
            if any(each[at : at + 1] != (token,) for each in done):
                break
            at += 1
        fresh = tuple(lead[base + self._certain : base + at])
        text = self._text(self._written, fresh, self._certain)
        self._certain = at
        return fresh, text

    def _tail(self) -> str:
        """The text that the leading hypothesis adds."""
        return self._text(self._written.copy(), self._leader()[self._certain :], self._certain)

    def _leader(self) -> tuple[int, ...]:
        """The tokens after the base of the hypothesis that would win if all ended now."""
        done = self._search.done
        if done and done[0].score > self._search.scores()[0]:
            return done[0].tokens
        return tokens_of(self._search.live[0])

    def _stream_of(self, member: Request) -> TextStream:
        stream = self._written.copy()
        self._text(stream, member.tokens[self._base + self._certain :], self._certain)
        return stream

    def _text(self, written: TextStream, tokens: Sequence[int], at: int) -> str:
        """The text that tokens at position `at` after the base add to a stream."""
        begin = self._earlier + at + 1
        return "".join([written.take(token, n, full=False)[0] for n, token in enumerate(tokens, begin)])

    @property
    def _held(self) -> int:
        """The number of blocks that the members hold; most are shared."""
        return len({block for each in self.members for block in held(each.blocks)})

    @property
    def _decoding(self) -> float:
        """Seconds from the first step of the reply to the last one of the search."""
        return 0.0 if self.first_token_at is None else self.last_token_at - self.first_token_at

    def _finish(self) -> Finish:
        """Send the best hypotheses in full. The first continues from the certain tokens."""
        results = self._search.done[: self.params.n]
        if not results:
            self._sink(Delta(self.id, finish=Finish.FAILED, error="no hypothesis could continue or end"))
            return Finish.FAILED
        self.replied = self._earlier + len(results[0].tokens)  # the search may have gone on after it
        finishes = []
        for choice, (score, tokens) in enumerate(results):
            written, at = (self._written, self._certain) if choice == 0 else (self._start.copy(), 0)
            text = self._text(written, tokens[at:-1], at)
            more, finish = written.take(tokens[-1], self._earlier + len(tokens), full=True)
            finishes.append(finish or Finish.LENGTH)
            stop = written.stop if finish is Finish.STOP else ""
            ended = Delta(self.id, tokens[at:], text + more, (), finish, blocks=self._held, stop=stop)
            left = len(results) - 1 - choice
            self._sink(ended._replace(choice=choice, left=left, score=score, decoding=self._decoding))
        ends = zip(finishes, results, strict=True)
        _, *others = (Ended(end.value, self._earlier + len(each.tokens)) for end, each in ends)
        self.others = tuple(others)
        return finishes[0]
