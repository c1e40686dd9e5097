"""A fleet in which some engines compute prompts, and others the replies."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from engine.api.commands import Abort, Accepted, Proceed, Submit
from engine.api.events import (
    Admitted,
    BlocksSent,
    Delta,
    Died,
    Event,
    Finished,
    FirstToken,
    PromptSent,
    Queued,
    RequestEvent,
    Restarting,
    Switched,
    TierProblem,
    Transferred,
)
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.api.snapshot import EXCHANGE
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.router import Placement, Router
from engine.host.client import EngineClient, Sink
from engine.kv.tiers.cost import running_mean

_NEEDED = "prefix_cache"  # the switch of an engine without which nothing is sent
_FAR_MORE = 2  # times as many tokens to compute on the other side are not worth the way


@dataclass(slots=True, eq=False)
class _Trip:
    """A request whose prompt another engine computes, in a request of its own there: the errand."""

    command: Submit
    target: Placement  # where the request runs
    source: Placement  # where the errand does
    began: float
    request: int = -1
    errand: int = -1
    admitted: float = 0.0
    computed: int = 0  # tokens
    over: bool = False  # the request has been let go, or has ended
    ends: int = 0  # of the errand's last two events


class ApartFleet(Fleet):
    """Sends each request to an engine for replies, where it is held until an engine for prompts has computed
    and sent the blocks that are missing. If that fails, or would not pay, the request computes them itself.
    """

    def __init__(
        self,
        prompts: Mapping[int, EngineClient],
        replies: Mapping[int, EngineClient],
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`closed`: called after the engines have ended."""
        self._sources, self._closed = prompts.keys(), closed
        self._trips: dict[int, _Trip] = {}  # by errand; `_events` guards this and the fields below
        self._early: dict[int, Queued] = {}  # of requests of sources: an errand is known once it is accepted
        self._firsts: dict[int, float] = {}  # when the first token of each running reply came
        self._token_seconds: float | None = None  # of a prompt; measured
        self._gap: float | None = None  # seconds between two tokens of a reply
        self._off = set[str | int]()  # what keeps blocks from being sent: the switch, or a replica's memory
        super().__init__({**prompts, **replies}, Router(apart=self._sources))
        first = next(iter(self._last.values()))
        self._block_size = first.block_size
        self._off |= {each.name for each in first.switches if not each.on} & {_NEEDED}
        for replica, shot in self._last.items():
            self._off |= {replica for tier in shot.tiers if tier.name == EXCHANGE and tier.problem}

    def close(self) -> None:
        super().close()
        self._closed()

    def _route(self, command: Submit) -> Placement | None:
        """Prompts without a reply go to the engines for prompts. Either kind stands in for the other."""
        only_prompt = bool(command.params.pooling) or command.params.max_tokens in (0, 1)
        return self._in_group(command, apart=only_prompt) or self._in_group(command, apart=not only_prompt)

    def _in_group(self, command: Submit, *, apart: bool) -> Placement | None:
        tokens = (*command.prompt, *command.reply_prefix)
        return self._router.route(tokens, command.salt, command.adapter, apart=apart)

    def _send_to(self, route: Placement, command: Submit, sink: Sink) -> Future[Any]:
        if (source := self._source(command, route)) is None:
            return super()._send_to(route, command, sink)
        trip = _Trip(command, route, source, time.monotonic())
        self._router.started(route)  # it computes next to nothing of the prompt
        accepted = super()._send_to(route, replace(command, held=True), partial(self._pass, trip, sink))
        accepted.add_done_callback(partial(self._depart, trip))
        return accepted

    def _source(self, command: Submit, target: Placement) -> Placement | None:
        """The engine to compute the prompt. None: that of its reply is to do so, since this delays other
        replies there by no more than a token takes, or since it would compute much less.
        """
        missing = target.missing + (target.cached - target.there) * self._block_size
        with self._events:
            seconds, gap, sends = self._token_seconds, self._gap, not self._off
        brief = seconds is not None and gap is not None and missing * seconds <= gap
        if brief or not sends or target.there == target.blocks or target.replica in self._sources:
            return None
        if command.params.prompt_logprobs is not None:  # these are of the whole prompt
            return None
        if (source := self._in_group(command, apart=True)) is None:
            return None
        if source.names != target.names or source.missing > _FAR_MORE * missing:
            self._router.ended(source)
            return None
        return source

    # On threads of the replicas

    def _pass(self, trip: _Trip, sink: Sink, delta: Delta) -> None:
        """Pass on what the request's engine sends. Its end also ends the errand."""
        if delta.last:
            with self._events:
                lost, trip.over = not trip.over, True
            if lost:
                self._abandon(trip)
        sink(delta)

    def _depart(self, trip: _Trip, accepted: Future[Accepted]) -> None:
        """The request has been accepted: have its prompt's whole blocks computed."""
        if accepted.exception() is not None:
            self._router.ended(trip.source)
            return
        trip.request = accepted.result().id
        command, replica = trip.command, trip.source.replica
        if not self._takes(replica):
            self._router.ended(trip.source)
            self._arrive(trip, error=f"replica {replica} takes no more prompts")
            return
        errand = Submit(
            (*command.prompt, *command.reply_prefix)[: trip.target.blocks * self._block_size],
            SamplingParams(max_tokens=1, temperature=0.0),
            command.priority,
            command.deadline,
            command.salt,
            chat=command.chat,
            adapter=command.adapter,
            sends=trip.target.there,
        )
        begun = self._begun(replica, errand, partial(self._on_errand, trip))
        begun.add_done_callback(partial(self._departed, trip))

    def _departed(self, trip: _Trip, accepted: Future[Accepted]) -> None:
        if (error := accepted.exception()) is not None:
            self._router.ended(trip.source)
            self._arrive(trip, error=str(error))
            return
        with self._events:
            trip.errand = accepted.result().id
            self._trips[trip.errand] = trip
        if trip.over:
            self._abandon(trip)

    def _on_errand(self, trip: _Trip, delta: Delta) -> None:
        if delta.last:
            self._router.ended(trip.source)
            if delta.finish is Finish.FAILED:
                self._arrive(trip, error=delta.error)

    def _abandon(self, trip: _Trip) -> None:
        if trip.errand >= 0:
            self._replicas[trip.source.replica].send(Abort((trip.errand,)))

    def _arrive(self, trip: _Trip, sent: int = 0, error: str = "") -> None:
        """Let the request start, with the blocks that were sent."""
        with self._events:
            if trip.over:
                return
            trip.over = True
            self._replicas[trip.target.replica].send(Proceed(trip.request))
            now, source, blocks = time.monotonic(), trip.source.replica, trip.target.blocks
            seconds = now - trip.began
            self._bus.emit(PromptSent(self._step, now, trip.request, source, blocks, sent, seconds, error))

    def _on_event(self, replica: int, event: Event) -> None:
        with self._events:
            if replica in self._sources and self._hides(event):
                return
            self._note(replica, event)
        super()._on_event(replica, event)

    def _hides(self, event: Event) -> bool:
        """Whether an event of a source is about an errand, which subscribers of the fleet do not know."""
        match event:
            case Queued(request=request):  # this may come before the answer that it has been accepted
                self._early[request] = event
                return True
            case Transferred(error="", load=False) if event.tier == EXCHANGE:
                return True
            case RequestEvent(request=request):
                early = self._early.pop(request, None)
                if (trip := self._trips.get(request)) is not None:
                    self._follow(trip, event)
                    return True
                if early is not None:
                    super()._on_event(request // NUMBERS, early)
        return False

    def _follow(self, trip: _Trip, event: RequestEvent) -> None:
        match event:
            case Admitted(at=at, cached=cached):
                trip.admitted, trip.computed = at, trip.target.blocks * self._block_size - cached
            case BlocksSent(at=at, blocks=blocks):
                trip.ends += 1
                if trip.computed > 0:
                    each = (at - trip.admitted) / trip.computed
                    self._token_seconds = running_mean(self._token_seconds, each)
                self._arrive(trip, blocks)
            case Finished(error=error):
                trip.ends += 2 if error else 1  # then nothing is sent
        if trip.ends >= 2:
            self._trips.pop(trip.errand, None)

    def _note(self, replica: int, event: Event) -> None:
        """Measure how often replies get a token, forget what a lost replica ran, and note what is off."""
        match event:
            case FirstToken(request=request, at=at):
                self._firsts[request] = at
            case Finished(request=request, at=at, tokens=tokens):
                if (first := self._firsts.pop(request, None)) is not None and tokens > 1:
                    self._gap = running_mean(self._gap, (at - first) / (tokens - 1))
            case Died() | Restarting():
                for known in (self._trips, self._early, self._firsts):
                    for request in [each for each in known if each // NUMBERS == replica]:
                        del known[request]
                self._off.discard(replica)
            case Switched(name=name, on=on) if name == _NEEDED:
                (self._off.discard if on else self._off.add)(name)
            case TierProblem(tier=tier, problem=problem) if tier == EXCHANGE:
                (self._off.add if problem else self._off.discard)(replica)
