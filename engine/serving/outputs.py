"""Delivers sampled tokens: to a single reply, to one of several samples, or to a beam search."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from engine.api import events
from engine.api.errors import BadInput, BadParams, UnknownRequest
from engine.api.events import Bus, Delta, TokenLogprob
from engine.api.params import SamplingParams
from engine.api.request import Finish, Phase, Request
from engine.api.snapshot import BeamsView
from engine.execution.protocol import BAD, StepResult, TopTokens
from engine.scheduling import forks, recovery
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step import PromptSpan, Step, StepRow
from engine.serving.groups.beams import BeamGroup
from engine.serving.groups.samples import SampleGroup
from engine.serving.meters import Meters
from engine.serving.reply import ReplyOutput, Sink, TextStream, without_reply


class OutputProcessor:
    """Owns the replies and the groups of rows that answer one request. Every request ends here."""

    def __init__(
        self,
        scheduler: Scheduler,
        meters: Meters,
        bus: Bus,
        clock: Callable[[], float],
        number: Callable[[], int],
        stop_ids: frozenset[int],
    ) -> None:
        self._scheduler, self._meters, self._bus, self._clock = scheduler, meters, bus, clock
        self._number, self._stop_ids = number, stop_ids
        self._replies: dict[int, ReplyOutput] = {}  # by row
        self._searches: dict[int, BeamGroup] = {}  # by the request they answer
        self._samples: dict[int, SampleGroup] = {}

    def open(self, request: Request, written: TextStream, sink: Sink) -> None:
        """Start a reply, a group of samples, or a beam search for the request."""
        if request.params.max_tokens == 0:
            sink = without_reply(sink)
        if request.params.beams > 1:
            group = BeamGroup(request, written, sink, self._scheduler, self._number, self._stop_ids)
            self._searches[request.id] = group
        elif request.params.samples > 1:
            samples = self._samples[request.id] = SampleGroup(request, written, sink, self._number)
            self._replies[request.id] = samples.reply(written)
        else:
            self._replies[request.id] = ReplyOutput(written, sink)

    def rows(self, id: int, *, missing: bool = False) -> list[Request]:
        """The request with this id, or all rows that answer it. `missing`: it may have ended."""
        if group := self._searches.get(id) or self._samples.get(id):
            return list(group.members)
        request = self._scheduler.requests.get(id)
        if request is None and not missing:
            raise UnknownRequest(f"no request {id} is alive")
        return [] if request is None else [request]

    @property
    def idle(self) -> bool:
        """No replies are pending."""
        return not (self._replies or self._searches or self._samples)

    @property
    def alive(self) -> int:
        """Live requests as the callers count them: rows that answer the same request count once."""
        rows = self._scheduler.requests.values()
        return len({row.id if row.group < 0 else row.group for row in rows})

    def searches(self, row: Request) -> bool:
        return row.group in self._searches

    def requested_params(self, row: Request) -> SamplingParams:
        """The parameters last requested for the request that a row answers."""
        group = self._searches.get(row.group) or self._samples.get(row.group)
        return group.requested_params if group else row.params

    def written(self, row: Request) -> TextStream:
        """The text stream of the row's reply."""
        return self._replies[row.id].written

    def beams(self) -> tuple[BeamsView, ...]:
        return tuple(group.view() for group in self._searches.values())

    # Sampled tokens

    def take(self, step: Step, result: StepResult, now: float) -> None:
        """Take in what a step computed."""
        for request, logprobs in result.prompt_logprobs.items():
            self._take_prompt(request, step.targets[request].first, logprobs)
        for request, total in result.sums.items():
            self._take_sum(request, step.spans[request], total)
        for each in result.scores:
            if (filler := self._scheduler.requests.get(each.request)) is not None:
                self._scheduler.kv.report(filler, each.block, each.scores)
        sampled, top_tokens = iter(result.tokens), result.top_tokens
        for row in step.rows:
            if not row.samples:
                self._scheduler.commit(row, None)
                continue
            token = next(sampled)
            if top_tokens is not None and row.request in top_tokens.places:
                self._take_top_tokens(step.number, row, token, top_tokens, now)
            elif row.drafted:
                self._take_run(step, row, result, now)
            else:
                self._take_token(step.number, row, token, result.logprobs.get(row.request, ()), now)

    def _take_prompt(self, id: int, first: int, logprobs: tuple[TokenLogprob, ...]) -> None:
        """Take in log-probabilities of prompt tokens from index `first` on.

        A request that was preempted in flight may get some of them twice.
        """
        if (request := self._scheduler.requests.get(id)) is None:
            return
        if any(math.isnan(each.logprob) for each in logprobs):
            self.end(request, Finish.FAILED, "the model returned NaN for the prompt")
        elif new := logprobs[request.scored - first :]:
            request.scored += len(new)
            self._replies[id].sink(Delta(id, prompt_logprobs=new))

    def _take_sum(self, id: int, span: PromptSpan, total: np.ndarray) -> None:
        """Take in the sum of a span. The one that ends the prompt completes its vector."""
        if (request := self._scheduler.requests.get(id)) is None:
            return
        if np.isnan(total).any():
            self.end(request, Finish.FAILED, "the model returned NaN for the prompt")
            return
        reply = self._replies[id]
        reply.pool.add(span, total)
        end = span.first + span.length
        request.scored = max(request.scored, end + 1)
        if end == request.prompt_len:
            reply.sink(Delta(id, pooled=reply.pool.vector(request)))

    def _take_run(self, step: Step, row: StepRow, result: StepResult, now: float) -> None:
        """Take in what a row with drafts sampled."""
        if (request := self._scheduler.requests.get(row.request)) is None:
            return
        run, logprobs = result.runs[row.request], result.logprobs.get(row.request, ())
        self._scheduler.speculator.observe_run(request, row.drafted, len(run) - 1, len(step.rows))
        if request.stamp != step.drafts[row.request].stamp:
            run = run[:1]  # only that one was launched before the request was changed
        self._scheduler.settle(row, len(run))
        before = now if request.first_token_at is None else request.last_token_at
        for at, token in enumerate(run):  # tokens of a run share the step's time
            at_time = before + (now - before) * (at + 1) / len(run)
            self._take_token(step.number, row, token, logprobs[at : at + 1], at_time)

    def _take_token(
        self, step: int, row: StepRow, token: int, logprobs: tuple[TokenLogprob, ...], now: float
    ) -> None:
        """Take in a new token of a request."""
        if token == BAD:
            request = self._scheduler.requests.get(row.request)
            if request is not None and not self._end_by_grammar(request):
                self.end(request, Finish.FAILED, "the model returned NaN for the next token")
            return
        request = self._scheduler.commit(row, token)
        if request is None:
            return
        if request.params.max_tokens != 0:
            self._note(request, step, now)
        if (samples := self._samples.get(request.group)) and not samples.whole:
            for child, reply in samples.start_others():
                self._replies[child.id] = reply
                forks.fork(self._scheduler, request, child)
        if request.guide:
            request.guide.read(request.tokens)
        finish = self._replies[row.request].take(
            request, token, logprobs, full=len(request.tokens) >= request.max_len
        )
        if finish:
            self._forget(request, finish)
        elif request.guide and self._end_by_grammar(request):
            return
        elif request.awaits and not request.pending:
            self._search(request)

    def _end_by_grammar(self, request: Request) -> bool:
        """End a request whose grammar allows no next token. Other requests are not affected."""
        if (guide := request.guide) is None or not guide.error:
            return False
        self._replies[request.id].end(request, Finish.FAILED, guide.error, guide.fault)
        self._forget(request, Finish.FAILED, guide.error)
        return True

    def _take_top_tokens(
        self, step: int, row: StepRow, token: int, top_tokens: TopTokens, now: float
    ) -> None:
        """Take in the candidates of one hypothesis. The search advances when it has all of them."""
        if token == BAD:
            self._take_token(step, row, token, (), now)
        if (request := self._scheduler.commit(row, None)) is None:
            return
        group = self._searches[request.group]
        if group.take(request, *top_tokens.of(request.id)):
            self._note(group, step, now)
            if finish := group.advance():
                self._close(group, finish)
                return
        self._apply_pending(group)

    def _note(self, target: Request | BeamGroup, step: int, now: float) -> None:
        """Record a token of a reply, and when it arrived."""
        self._meters.replied += 1
        if target.first_token_at is None:
            target.first_token_at = now
            if isinstance(target, Request):
                target.saved = self._scheduler.transfers.saved(target)
            self._meters.first_token(now - target.arrived)
            self._bus.emit(events.FirstToken(step, now, target.id, now - target.arrived, target.generated))
        else:
            self._meters.next_token(now - target.last_token_at)
        target.last_token_at = now

    # Changed parameters

    def check(self, id: int, params: SamplingParams) -> None:
        """Raise if a request cannot continue with these parameters."""
        row = self.rows(id)[0]
        if row.group not in (-1, id):
            raise BadInput(f"request {id} is one of several that answer request {row.group}: change that one")
        before = self.requested_params(row)
        if (params.n, params.best_of) != (before.n, before.best_of):
            name = "n" if params.n != before.n else "best_of"
            raise BadParams(name, "cannot change after a request is submitted")
        for name in ("prompt_logprobs", "pooling"):
            if getattr(params, name) != getattr(before, name):
                raise BadParams(name, "cannot change after a request is submitted")
        if (params.max_tokens == 0) != (before.max_tokens == 0):
            raise BadParams("max_tokens", "cannot change from or to 0 after a request is submitted")
        if params.beams > 1 and id in self._samples:
            raise BadParams("beams", f"cannot replace {before.samples} samples of one prompt")

    def retune(self, id: int, params: SamplingParams, max_len: int, *, seed: bool) -> None:
        """Change parameters from the next launched step on. `seed`: the seed changes too."""
        rows = self.rows(id)
        if group := self._searches.get(id):
            group.retune(params, max_len)
            self._apply_pending(group)
            if group.length >= max_len and id in self._searches:
                self.end(rows[0], Finish.LENGTH)
            return
        if samples := self._samples.get(id):
            samples.retune(params, seed=seed)
        for request in rows:
            self._retune(request, params, max_len, seed=seed)

    def _retune(self, request: Request, params: SamplingParams, max_len: int, *, seed: bool) -> None:
        if samples := self._samples.get(request.group):
            params = samples.of_member(params)
        if params.grammar != request.params.grammar:
            request.guide, request.guided_from = None, request.known
        elif (params.allowed_token_ids, params.bad_words) != (
            request.params.allowed_token_ids,
            request.params.bad_words,
        ):
            request.guide = None
        request.params, request.max_len = params, max_len
        self._scheduler.restamp(request)
        if seed and params.seed is not None:
            request.seed = samples.seed_of(request) if samples else params.seed % 2**64
        self._replies[request.id].retune(params, in_flight=request.pending > 0)
        request.awaits = params.beams > 1
        if len(request.tokens) >= request.max_len:  # it has already reached the new limit
            self.end(request, Finish.LENGTH)
        elif request.awaits and not request.pending:
            self._search(request)

    def _apply_pending(self, group: BeamGroup) -> None:
        """Apply parameters that were changed while the search was in flight."""
        if ended := group.apply_pending():
            del self._searches[group.id]
            request, self._replies[group.id] = ended
            if len(request.tokens) >= request.max_len:
                self.end(request, Finish.LENGTH)

    def _search(self, request: Request) -> None:
        """Turn an ordinary request into a beam search."""
        reply = self._replies.pop(request.id)
        self.open(request, reply.written, reply.sink)

    # Ending requests

    def end(self, request: Request, finish: Finish, error: str = "") -> None:
        """End a request from outside. No-op if it has already ended."""
        if request.phase is Phase.DONE:
            return
        if group := self._searches.get(request.group):
            group.end(finish, error)
            self._close(group, finish, error)
            return
        self._replies[request.id].end(request, finish, error)
        self._forget(request, finish, error)

    def end_all(self, reason: str) -> None:
        """Fail everything without using the scheduler, whose state may be inconsistent."""
        for group in self._searches.values():
            group.end(Finish.FAILED, reason)
        self._searches.clear()
        self._samples.clear()
        for request in self._scheduler.requests.values():
            if reply := self._replies.pop(request.id, None):  # None if it was ending at the failure
                reply.end(request, Finish.FAILED, reason)
                self._meters.finished += 1
        recovery.fail_all(self._scheduler, reason)

    def _forget(self, request: Request, finish: Finish, error: str = "") -> None:
        del self._replies[request.id]
        if samples := self._samples.get(request.group):
            samples.members.remove(request)
            if not samples.members:
                del self._samples[samples.id]
        self._meters.finished += 1
        self._scheduler.finish(request, finish, error)

    def _close(self, group: BeamGroup, finish: Finish, error: str = "") -> None:
        """Close a search that has ended, with all its hypotheses."""
        del self._searches[group.id]
        if not error:
            self._scheduler.transfers.keep(group.members[0])  # the best one; the others share most blocks
        for request in group.members:
            if error:
                self._scheduler.transfers.forget(request)
            self._scheduler.drop(request)
        self._meters.finished += 1
        step, now = self._scheduler.step, self._clock()
        ended = events.Finished(step, now, group.id, finish.value, group.replied, error, group.others)
        self._bus.emit(ended)
