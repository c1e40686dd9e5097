"""The machine: schedule, launch, commit the step before. One thread owns it."""

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine import events
from engine.errors import BadInput, EngineDead, QueueFull, RequestTooLong, UnknownRequest
from engine.events import Bus, Delta, log
from engine.meters import Meters
from engine.observe import Facts, snapshot
from engine.params import SamplingParams
from engine.reply import Reply
from engine.request import Finish, Request
from engine.runner.protocol import BAD, Outcome, Runner
from engine.scheduling.plan import Plan, Row
from engine.scheduling.scheduler import Scheduler
from engine.snapshot import Snapshot, Switch
from engine.text.tokenizer import Tokenizer

Sink = Callable[[Delta], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What no request may pass."""

    context: int  # tokens that the model, and the whole cache, can hold for one request
    vocab: int
    waiting: int
    stop_ids: frozenset[int] = frozenset()  # end a reply, unless it ignores them


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
    ) -> None:
        self.scheduler, self.runner, self.tokenizer = scheduler, runner, tokenizer
        self.limits, self.facts, self.bus = limits, facts, bus
        self.depth, self.clock = depth, clock
        self.meters = Meters()
        self.error = ""  # why it is dead, if it is
        self._replies: dict[int, Reply] = {}
        self._numbers = itertools.count()
        self._seeds = random.Random(seed)
        self._ahead: Flight | None = None
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
    ) -> int:
        """A new request; its deltas go to `sink`. `deadline`: seconds from now to its first token.

        `continues`: the reply's text goes on from the prompt's, instead of beginning anew.
        """
        self._admit_only_if_alive()
        self._check_ids(params, prompt)
        _check_order(priority, deadline)
        max_len = self._max_len(len(prompt), params)
        if len(self.scheduler.waiting) >= self.limits.waiting:
            raise QueueFull(f"{self.limits.waiting} requests wait already; try again later")
        now = self.clock()
        request = Request(
            id=next(self._numbers),
            tokens=list(prompt),
            prompt_len=len(prompt),
            params=params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64,
            max_len=max_len,
            arrived=now,
            priority=priority,
            deadline=None if deadline is None else now + deadline,
            salt=salt,
        )
        self._replies[request.id] = Reply(
            self.tokenizer, self.limits.stop_ids, params, prompt if continues else (), sink
        )
        self.scheduler.add(request)
        return request.id

    def fork(self, parent: int, sink: Sink, params: SamplingParams | None = None) -> int:
        """A request that goes on from a running one's tokens, sharing its blocks; its deltas begin there."""
        self._admit_only_if_alive()
        source = self._request(parent)
        params = params or source.params
        self._check_ids(params)
        child = Request(
            id=next(self._numbers),
            tokens=list(source.tokens),
            prompt_len=source.prompt_len,
            params=params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed % 2**64,
            max_len=self._max_len(source.prompt_len, params),
            arrived=self.clock(),
            priority=source.priority,
            salt=source.salt,
        )
        if len(child.tokens) >= child.max_len:
            raise RequestTooLong(
                f"request {parent} has {len(child.tokens)} tokens; the fork may have {child.max_len}"
            )
        self._replies[child.id] = self._replies[parent].fork(params, sink)
        self.scheduler.fork(source, child)
        return child.id

    def length(self, id: int) -> int:
        """Tokens of a request, prompt and reply, that are committed."""
        return len(self._request(id).tokens)

    def update(self, id: int, **changes: object) -> None:
        """Other sampling parameters, from the next step that is not launched yet."""
        request = self._request(id)
        params = request.params.changed(**changes)
        self._check_ids(params)
        request.max_len = self._max_len(request.prompt_len, params)
        request.params = params
        self.scheduler.restamp(request)
        if "seed" in changes and params.seed is not None:
            request.seed = params.seed % 2**64
        self._replies[id].retune(params, in_flight=request.pending > 0)
        self.bus.emit(events.Updated(self.scheduler.step, self.clock(), id, tuple(changes)))
        if len(request.tokens) >= request.max_len:  # it is as long as it may be now, or longer
            self._end(request, Finish.LENGTH)

    def abort(self, id: int) -> None:
        """Ends a request now. One that has ended already is left in peace."""
        request = self.scheduler.requests.get(id)
        if request is not None:
            self._end(request, Finish.ABORTED)

    def preempt(self, id: int) -> None:
        """Makes a running request give way for a moment."""
        self.scheduler.preempt(self._request(id))

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

    @property
    def switches(self) -> tuple[Switch, ...]:
        return tuple(Switch(name, on, self._usual[name]) for name, on in self._switched().items())

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

    # One turn

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.requests) or self._ahead is not None

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
        prefill = sum(row.length for row in flight.plan.rows[flight.plan.single :])
        self._learn(flight, outcome, prefill, now)
        sampled = iter(outcome.tokens)
        for row in flight.plan.rows:
            if row.samples:
                self._take(flight.plan.step, row, next(sampled), outcome, now)
            else:
                self.scheduler.commit(row, None)
        spent = (flight.planned, flight.launched, now - began, self.clock() - now)
        self.meters.step(now, flight.plan, prefill, spent)

    def _take(self, step: int, row: Row, token: int, outcome: Outcome, now: float) -> None:
        """One new token for one request."""
        if token == BAD:
            request = self.scheduler.requests.get(row.request)
            if request is not None:
                self._end(request, Finish.FAILED, "the model gave no number (NaN) for the next token")
            return
        request = self.scheduler.commit(row, token)
        if request is None:
            return
        if request.first_token_at is None:
            request.first_token_at = now
            self.meters.first_token(now - request.arrived)
            self.bus.emit(events.FirstToken(step, now, request.id, now - request.arrived))
        else:
            self.meters.next_token(now - request.last_token_at)
        request.last_token_at = now
        finish = self._replies[row.request].take(
            request, token, outcome.logprobs.get(row.request, ()), full=len(request.tokens) >= request.max_len
        )
        if finish:
            self._forget(request, finish)

    def _learn(self, flight: Flight, outcome: Outcome, prefill: int, now: float) -> None:
        """Lets the scheduler know what this step has cost."""
        begun = max(self._committed_at, now - outcome.seconds) if self.depth else now - outcome.seconds
        self.scheduler.costs.saw_step(prefill, now - begun)
        self.scheduler.costs.saw_swap(
            len(flight.plan.swaps_out) + len(flight.plan.swaps_in), outcome.swap_seconds
        )
        self._committed_at = now

    # When things end

    def _end(self, request: Request, finish: Finish, error: str = "") -> None:
        self._replies[request.id].end(request, finish, error)
        self._forget(request, finish, error)

    def _forget(self, request: Request, finish: Finish, error: str = "") -> None:
        del self._replies[request.id]
        self.meters.finished += 1
        self.scheduler.finish(request, finish, error)

    def _step_failed(self, plan: Plan, error: Exception) -> None:
        """The requests of the step end with the reason; the engine goes on, if the device still answers."""
        reason = f"the step failed: {type(error).__name__}: {error}"
        log.error("step %d failed", plan.step, exc_info=error)
        self.bus.emit(
            events.StepBroke(plan.step, self.clock(), reason, tuple(row.request for row in plan.rows))
        )
        self.scheduler.abandon(plan)
        for request in self.scheduler.relying_on(plan):
            self._end(request, Finish.FAILED, reason)
        if problem := self.runner.ailing():
            raise EngineDead(f"{problem} (after: {reason})")

    def die(self, reason: str) -> None:
        """Ends every request with the reason. Nothing runs after this."""
        self.error = reason
        self._ahead = None
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

    def _request(self, id: int) -> Request:
        request = self.scheduler.requests.get(id)
        if request is None:
            raise UnknownRequest(f"no request {id} is alive")
        return request

    def _check_ids(self, params: SamplingParams, prompt: Sequence[int] = ()) -> None:
        """No token that the model does not know may reach its tables."""
        vocab, biased = self.limits.vocab, (token for token, _ in params.logit_bias)
        for token in itertools.chain(prompt, params.stop_ids, biased):
            if not 0 <= token < vocab:
                raise BadInput(f"token id {token} is out of range: {self.facts.model} knows 0 to {vocab - 1}")

    def _max_len(self, prompt: int, params: SamplingParams) -> int:
        """How many tokens a request with so long a prompt may hold; raises where it can never fit."""
        name, context = self.facts.model, self.limits.context
        if not prompt:
            raise BadInput("the prompt is empty, and the model has no start token to begin from")
        if prompt >= context:
            raise RequestTooLong(
                f"the prompt has {prompt} tokens, but {name} holds {context} here, one of them for the "
                f"reply; shorten it to {context - 1}"
            )
        if params.max_tokens is None:
            return context
        if prompt + params.max_tokens > context:
            raise RequestTooLong(
                f"the prompt has {prompt} tokens and asks for {params.max_tokens} more, but {name} holds "
                f"{context} here; shorten it or lower max_tokens to {context - prompt}"
            )
        return prompt + params.max_tokens


def _check_order(priority: object, deadline: object) -> None:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**31:
        raise BadInput(f"priority must be a whole number, not {priority!r}")
    if deadline is not None and not (isinstance(deadline, int | float) and math.isfinite(deadline)):
        raise BadInput(f"deadline must be seconds from now, not {deadline!r}")
