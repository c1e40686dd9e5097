"""The machine: schedule, launch, commit the step before. One thread owns it."""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine import events
from engine.config import KV_SCHEMES, KvSchemeName
from engine.errors import BadInput, BadParams, EngineDead, QueueFull, RequestTooLong, UnknownRequest
from engine.events import Bus, TokenLogprob, log
from engine.grammar.grammars import Grammars
from engine.groups.beams import BeamGroup
from engine.groups.samples import SampleGroup
from engine.limits import Limits, check_order
from engine.meters import Meters
from engine.observe import Facts, snapshot
from engine.params import Grammar, SamplingParams
from engine.reply import Reply, Sink, Written
from engine.requantize import Requantization, begin
from engine.request import Finish, Phase, Request
from engine.runner.protocol import BAD, Likeliest, Outcome, Runner
from engine.scheduling.plan import Plan, Row
from engine.scheduling.scheduler import Scheduler
from engine.snapshot import BeamsView, Change, Snapshot, Switch
from engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.runner.weights import Weights


@dataclass(slots=True)
class Flight:
    """A step on its way: launched, not committed."""

    plan: Plan
    handle: object
    planned: float  # seconds
    launched: float  # seconds


class Engine:
    """Takes requests, and turns one step after another into their replies."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        limits: Limits,
        facts: Facts,
        bus: Bus,
        depth: int = 0,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        grammars: Grammars | None = None,
        weights: "Weights | None" = None,
    ) -> None:
        self.scheduler, self.runner, self.tokenizer = scheduler, runner, tokenizer
        self.limits, self.facts, self.bus = limits, facts, bus
        self.depth, self.clock, self.grammars, self.weights = depth, clock, grammars, weights
        self.meters = Meters()
        self.error = ""  # why it is dead, if it is
        self._replies: dict[int, Reply] = {}
        self._searches: dict[int, BeamGroup] = {}
        self._samples: dict[int, SampleGroup] = {}
        self._numbers = itertools.count()
        self._seeds = random.Random(seed)
        self._ahead: Flight | None = None
        self._requantization: Requantization | None = None
        self.change: Change | None = None  # of the weights' scheme, that goes on or has failed
        self._committed_at = 0.0
        self._usual = self._switched()

    # What a person may ask for

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        sink: Sink,
        *,
        priority: int = 0,
        deadline: float | None = None,
        salt: bytes = b"",
        continues: bool = True,
        said: Sequence[int] = (),
    ) -> int:
        """A new request; its deltas go to `sink`. `deadline`: seconds from now to its first token.

        `continues`: the reply's text goes on from the prompt's, instead of beginning anew.
        `said`: tokens with which the reply begins, such as those of another one up to where they part. Its
        deltas come behind them; blocks that hold them already are shared.
        """
        self._admit_only_if_alive()
        self._check(params, (*prompt, *said))
        check_order(priority, deadline)
        max_len = self.limits.max_len(self.facts.model, len(prompt), params)
        if len(self.scheduler.waiting) >= self.limits.waiting:
            raise QueueFull(f"{self.limits.waiting} requests wait already; try again later")
        now = self.clock()
        request = Request(
            id=next(self._numbers),
            tokens=[*prompt, *said],
            prompt_len=len(prompt),
            params=params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64,
            max_len=max_len,
            arrived=now,
            priority=priority,
            deadline=None if deadline is None else now + deadline,
            salt=salt,
        )
        if len(request.tokens) >= max_len:
            room = max_len - len(prompt)
            raise RequestTooLong(f"{len(said)} tokens of the reply are there; it may have {room}")
        written = Written(self.tokenizer, self.limits.stop_ids, params, prompt if continues else ())
        written.skip(said)
        self._open(request, written, sink)
        self.scheduler.add(request)
        return request.id

    def _open(self, request: Request, written: Written, sink: Sink) -> None:
        """One reply, several, or a search for it."""
        if request.params.beams > 1:
            stop_ids, number = self.limits.stop_ids, self._numbers.__next__
            group = BeamGroup(request, written, sink, self.scheduler, number, stop_ids)
            self._searches[request.id] = group
        elif request.params.samples > 1:
            samples = self._samples[request.id] = SampleGroup(request, written, sink, self._numbers.__next__)
            self._replies[request.id] = samples.reply(written)
        else:
            self._replies[request.id] = Reply(written, sink)

    def fork(self, parent: int, sink: Sink, params: SamplingParams | None = None) -> int:
        """A request that goes on from a running one's tokens, sharing its blocks; its deltas begin there."""
        self._admit_only_if_alive()
        source = self._rows(parent)[0]
        if parent in self._searches:
            beams = source.params.beams
            raise BadInput(f"request {parent} searches with {beams} beams: set them to 1 to fork it")
        params = params or source.params.changed(n=1, best_of=None)
        self._check(params)
        child = Request(
            id=next(self._numbers),
            tokens=list(source.tokens),
            prompt_len=source.prompt_len,
            params=params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64,
            max_len=self.limits.max_len(self.facts.model, source.prompt_len, params),
            arrived=self.clock(),
            priority=source.priority,
            salt=source.salt,
            guided_from=source.guided_from if params.grammar == source.params.grammar else len(source.tokens),
        )
        if len(child.tokens) >= child.max_len:
            raise RequestTooLong(
                f"request {parent} has {len(child.tokens)} tokens; the fork may have {child.max_len}"
            )
        self._open(child, self._replies[source.id].written.fork(params), sink)
        self.scheduler.fork(source, child)
        return child.id

    def length(self, id: int) -> int:
        """Tokens of a request, prompt and reply, that are committed."""
        return len(self._rows(id)[0].tokens)

    def update(self, id: int, **changes: object) -> None:
        """Other sampling parameters, from the next step that is not launched yet.

        A search begins with the text as it is, and the best hypothesis goes on where it ends.
        """
        rows = self._rows(id)
        before = rows[0].params
        params = before.changed(**changes)
        if (params.n, params.best_of) != (before.n, before.best_of):
            name = "n" if params.n != before.n else "best_of"
            raise BadParams(name, "is settled when a request is submitted")
        if params.grammar and id in self._searches:
            raise BadParams("grammar", f"cannot take over from {before.beams} beams; set them to 1 first")
        if params.beams > 1 and id in self._samples:
            raise BadParams("beams", f"cannot take over from {before.samples} samples of one prompt")
        self._check(params)
        max_len = self.limits.max_len(self.facts.model, rows[0].prompt_len, params)
        self.bus.emit(events.Updated(self.scheduler.step, self.clock(), id, tuple(changes)))
        if group := self._searches.get(id):
            group.retune(params, max_len)
            self._turn(group)
            if group.length >= max_len and id in self._searches:
                self._end(rows[0], Finish.LENGTH)
            return
        for request in rows:
            self._retune(request, params, max_len, seed="seed" in changes)

    def _retune(self, request: Request, params: SamplingParams, max_len: int, *, seed: bool) -> None:
        if samples := self._samples.get(request.group):
            params = samples.of_member(params)
        if params.grammar != request.params.grammar:
            request.guide, request.guided_from = None, request.known
        request.params, request.max_len = params, max_len
        self.scheduler.restamp(request)
        if seed and params.seed is not None:
            request.seed = params.seed % 2**64
        self._replies[request.id].retune(params, in_flight=request.pending > 0)
        request.awaits = params.beams > 1
        if len(request.tokens) >= request.max_len:  # it is as long as it may be now, or longer
            self._end(request, Finish.LENGTH)
        elif request.awaits and not request.pending:
            self._search(request)

    def abort(self, id: int) -> None:
        """Ends a request now. One that has ended already is left in peace."""
        for request in self._rows(id, missing=True):
            if request.phase is not Phase.DONE:
                self._end(request, Finish.ABORTED)

    def preempt(self, id: int) -> None:
        """Makes a running request give way for a moment."""
        for request in self._rows(id):
            self.scheduler.preempt(request)

    def set_switch(self, name: str, on: bool) -> None:
        """Turns a technique off or on from the next plan on, whatever runs. Tokens stay the same."""
        present = self._switched()
        if name not in present:
            raise BadInput(f"this engine has no switch {name!r}; it has {', '.join(present)}")
        if not isinstance(on, bool):
            raise BadInput(f"the switch {name} is True or False, not {on!r}")
        if on is present[name]:
            return
        match name:
            case "prefix_cache":
                self.scheduler.rules.prefix_cache = on
            case "chunked_prefill":
                self.scheduler.rules.chunked_prefill = on
            case "overlap":  # a step that is under way is committed before the next one, or with it
                self.depth = int(on)
            case "graphs":
                self.runner.graphs = on
        self.bus.emit(events.Switched(self.scheduler.step, self.clock(), name, on))

    def set_quantization(self, scheme: str) -> None:
        """Keeps the weights in another scheme. Requests stand still meanwhile, and go on with their cache.

        It begins here and goes on in `step`; events and snapshots tell how far it is, and how it ends.
        """
        self._admit_only_if_alive()
        if self._requantization is not None:
            wanted = self._requantization.wanted
            raise BadInput(f"the weights are on their way to {wanted}: wait, or cancel that")
        if self.weights is None:
            raise BadInput(f"quantization {scheme!r}: this engine's weights have one form, and keep it")
        self._requantization = begin(self, self.weights, scheme)

    def cancel_quantization(self) -> None:
        """Goes back to the scheme before; does nothing where no change is under way."""
        if self._requantization is not None:
            self._requantization.cancel()

    def set_kv_scheme(self, scheme: KvSchemeName) -> None:
        """Another form of the cache, while no request is alive. What was cached is forgotten."""
        if scheme not in KV_SCHEMES:
            raise BadInput(f"there is no KV scheme {scheme!r}; there are {', '.join(KV_SCHEMES)}")
        self._admit_only_if_alive()
        if self.busy:
            alive = len(self.scheduler.requests)
            wait = f"wait for {alive}, or end them"
            raise BadInput(f"the cache keeps its form while requests are alive: {wait}")
        if scheme == self.scheduler.kv_scheme:
            return
        self.scheduler.pool.forget_all()  # even where this fails, what the blocks hold is gone
        fit = self.runner.recache(scheme)
        self.scheduler.recache(scheme, fit.blocks, fit.host_blocks)
        self.limits = replace(self.limits, context=fit.context)
        self.facts = replace(self.facts, kv_dtype=self.facts.dtype if scheme == "none" else scheme)
        self.bus.emit(events.Recached(self.scheduler.step, self.clock(), scheme, fit.blocks))

    @property
    def switches(self) -> tuple[Switch, ...]:
        return tuple(Switch(name, on, self._usual.get(name, on)) for name, on in self._switched().items())

    def _switched(self) -> dict[str, bool]:
        rules, graphs = self.scheduler.rules, self.runner.graphs
        found = {
            "prefix_cache": rules.prefix_cache,
            "chunked_prefill": rules.chunked_prefill,
            "overlap": self.depth > 0,
        }
        return found if graphs is None else {**found, "graphs": graphs}

    def snapshot(self) -> Snapshot:
        return snapshot(self)

    def beams(self) -> tuple[BeamsView, ...]:
        return tuple(group.view() for group in self._searches.values())

    # One turn

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.requests) or self._ahead is not None or self._requantization is not None

    def pause(self) -> float:
        """After a turn with nothing to do, though requests wait: seconds until the next one makes sense."""
        if self.scheduler.held_until is None:
            head = self.scheduler.waiting.head()
            raise EngineDead(
                f"nothing runs, and request {head and head.id} cannot start: {head and head.why}"
            )
        return max(0.0, self.scheduler.held_until - self.clock())

    def step(self) -> bool:
        """One turn. False when there was nothing to do."""
        if self._requantization is not None:
            return self._requantize(self._requantization)
        began = self.clock()
        plan = self.scheduler.plan()
        planned = self.clock()
        flight = self._launch(plan, planned - began) if plan else None
        before, self._ahead = self._ahead, flight
        if before:
            self._commit(before)
        if self.depth == 0 and self._ahead:
            flight, self._ahead = self._ahead, None
            self._commit(flight)
        return plan is not None or before is not None or self.scheduler.gave_way

    def _requantize(self, change: Requantization) -> bool:
        """A layer of weights in a step's place."""
        if before := self._ahead:
            self._ahead = None
            self._commit(before)
        if not change.turn():
            self._requantization = None
        return True

    def _launch(self, plan: Plan, planned: float) -> Flight | None:
        began = self.clock()
        try:
            handle = self.runner.launch(plan)
        except Exception as error:
            self._step_failed(plan, error)
            return None
        return Flight(plan, handle, planned, self.clock() - began)

    def _commit(self, flight: Flight) -> None:
        began = self.clock()
        try:
            outcome = self.runner.collect(flight.handle)
        except Exception as error:
            self._step_failed(flight.plan, error)
            return
        now = self.clock()
        prefill = flight.plan.prefill
        self._learn(flight, outcome, prefill, now)
        sampled = iter(outcome.tokens)
        for row in flight.plan.rows:
            if row.samples:
                self._take_row(flight.plan, row, next(sampled), outcome, now)
            else:
                self.scheduler.commit(row, None)
        spent = (flight.planned, flight.launched, now - began, self.clock() - now)
        self.meters.step(now, flight.plan, prefill, spent)

    def _take_row(self, plan: Plan, row: Row, token: int, outcome: Outcome, now: float) -> None:
        """What a row has drawn: one token, or a run of them where drafts stood."""
        if outcome.likeliest is not None and row.request in outcome.likeliest.places:
            return self._take_likeliest(plan.step, row, token, outcome.likeliest, now)
        logprobs = outcome.logprobs.get(row.request, ())
        if not row.drafted:
            return self._take(plan.step, row, token, logprobs, now)
        if (request := self.scheduler.requests.get(row.request)) is None:
            return None
        run = outcome.runs[row.request]
        self.scheduler.speculator.saw_run(request, row.drafted, len(run) - 1, len(plan.rows))
        if request.stamp != plan.drafts[row.request].stamp:
            run = run[:1]  # only that one was on its way when the request was changed
        self.scheduler.settle(row, len(run))
        for at, token in enumerate(run):
            self._take(plan.step, row, token, logprobs[at : at + 1], now)
        return None

    def _take(self, step: int, row: Row, token: int, logprobs: tuple[TokenLogprob, ...], now: float) -> None:
        """One new token for one request."""
        if token == BAD:
            request = self.scheduler.requests.get(row.request)
            if request is not None:
                why = request.guide.error if request.guide else ""
                why = why or "the model gave no number (NaN) for the next token"
                self._end(request, Finish.FAILED, why)
            return
        request = self.scheduler.commit(row, token)
        if request is None:
            return
        self._said(request, step, now)
        if (samples := self._samples.get(request.group)) and not samples.whole:
            for child, reply in samples.spread():
                self._replies[child.id] = reply
                self.scheduler.branch(request, child)
        if request.guide:
            request.guide.read(request.tokens)
        finish = self._replies[row.request].take(
            request, token, logprobs, full=len(request.tokens) >= request.max_len
        )
        if finish:
            self._forget(request, finish)
        elif request.guide and request.guide.error:
            self._end(request, Finish.FAILED, request.guide.error)
        elif request.awaits and not request.pending:
            self._search(request)

    def _take_likeliest(self, step: int, row: Row, token: int, likeliest: Likeliest, now: float) -> None:
        """What one hypothesis of a search could go on with; when all are there, the search does."""
        if token == BAD:
            self._take(step, row, token, (), now)
        if (request := self.scheduler.commit(row, None)) is None:
            return
        group = self._searches[request.group]
        if group.take(request, *likeliest.of(request.id)):
            self._said(group, step, now)
            if finish := group.advance():
                self._close(group, finish)
                return
        self._turn(group)

    def _turn(self, group: BeamGroup) -> None:
        """Lets a search go on as a person has asked for meanwhile."""
        if turned := group.turn():
            del self._searches[group.id]
            request, self._replies[group.id] = turned
            if len(request.tokens) >= request.max_len:
                self._end(request, Finish.LENGTH)

    def _search(self, request: Request) -> None:
        """What was an ordinary request until now goes on as a search."""
        reply = self._replies.pop(request.id)
        self._open(request, reply.written, reply.sink)

    def _said(self, who: Request | BeamGroup, step: int, now: float) -> None:
        """Notes when a token came."""
        if who.first_token_at is None:
            who.first_token_at = now
            self.meters.first_token(now - who.arrived)
            self.bus.emit(events.FirstToken(step, now, who.id, now - who.arrived))
        else:
            self.meters.next_token(now - who.last_token_at)
        who.last_token_at = now

    def _learn(self, flight: Flight, outcome: Outcome, prefill: int, now: float) -> None:
        """Lets the scheduler know what this step has cost."""
        begun = max(self._committed_at, now - outcome.seconds) if self.depth else now - outcome.seconds
        self.scheduler.costs.saw_step(prefill, now - begun)
        if not prefill and flight.plan.rows:
            self.scheduler.speculator.saw_step(flight.plan, now - begun)
        self.scheduler.costs.saw_swap(
            len(flight.plan.swaps_out) + len(flight.plan.swaps_in), outcome.swap_seconds
        )
        self._committed_at = now

    # When things end

    def _end(self, request: Request, finish: Finish, error: str = "") -> None:
        if group := self._searches.get(request.group):
            group.end(finish, error)
            self._close(group, finish, error)
            return
        self._replies[request.id].end(request, finish, error)
        self._forget(request, finish, error)

    def _forget(self, request: Request, finish: Finish, error: str = "") -> None:
        del self._replies[request.id]
        if samples := self._samples.get(request.group):
            samples.members.remove(request)
            if not samples.members:
                del self._samples[samples.id]
        self.meters.finished += 1
        self.scheduler.finish(request, finish, error)

    def _close(self, group: BeamGroup, finish: Finish, error: str = "") -> None:
        """A search has ended, and all its hypotheses with it."""
        del self._searches[group.id]
        for request in group.members:
            if error:
                self.scheduler.pool.forget(request.blocks)
            self.scheduler.drop(request)
        self.meters.finished += 1
        step, now = self.scheduler.step, self.clock()
        self.bus.emit(events.Finished(step, now, group.id, finish.value, group.generated, error))

    def _step_failed(self, plan: Plan, error: Exception) -> None:
        """The requests of the step end with the reason; the engine goes on, if the device still answers."""
        reason = f"the step failed: {type(error).__name__}: {error}"
        log.error("step %d failed", plan.step, exc_info=error)
        self.bus.emit(
            events.StepBroke(plan.step, self.clock(), reason, tuple(row.request for row in plan.rows))
        )
        self.scheduler.abandon(plan)
        for request in self.scheduler.relying_on(plan):
            if request.phase is not Phase.DONE:  # else it went with a search that it belonged to
                self._end(request, Finish.FAILED, reason)
        if problem := self.runner.ailing():
            raise EngineDead(f"{problem} (after: {reason})")

    def die(self, reason: str) -> None:
        """Ends every request with the reason. Nothing runs after this."""
        self.error = reason
        self._ahead = None
        for group in self._searches.values():
            group.end(Finish.FAILED, reason)
        self._searches.clear()
        self._samples.clear()
        for request in self.scheduler.requests.values():
            if reply := self._replies.pop(request.id, None):  # none: it broke as that one ended
                reply.end(request, Finish.FAILED, reason)
                self.meters.finished += 1
        self.scheduler.clear(reason)
        self.bus.emit(events.Died(self.scheduler.step, self.clock(), reason))

    # Small checks

    def _admit_only_if_alive(self) -> None:
        if self.error:
            raise EngineDead(f"the engine has stopped: {self.error}")

    def _rows(self, id: int, *, missing: bool = False) -> list[Request]:
        """The request of that number, or all that answer it. `missing`: it may have ended."""
        if group := self._searches.get(id) or self._samples.get(id):
            return list(group.members)
        request = self.scheduler.requests.get(id)
        if request is None and not missing:
            raise UnknownRequest(f"no request {id} is alive")
        return [] if request is None else [request]

    def _check(self, params: SamplingParams, tokens: Sequence[int] = ()) -> None:
        self.limits.check(self.facts.model, len(self.scheduler.tables.grid), params, tokens)
        if params.grammar:
            self.check_grammar(params.grammar)

    def check_grammar(self, grammar: Grammar) -> None:
        """From any thread. A new one takes a while, so hosts do this before they bother the engine's own."""
        if self.grammars is None:
            raise BadParams("grammar", f"cannot be had: {self.facts.model} has no vocabulary of text here")
        self.grammars.check(grammar)
