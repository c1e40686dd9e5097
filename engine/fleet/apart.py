"""A fleet in which some engines compute prompts, and others the replies."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
    RequestEvent,
    Restarting,
    Switched,
)
from engine.api.params import SamplingParams
from engine.api.request import Finish
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.router import Placement, Router
from engine.host.client import EngineClient, Sink
from engine.kv.tiers.cost import running_mean

_FAR_MORE = 2  # times as many tokens to compute on the other side are not worth the way


@dataclass(slots=True, eq=False)
class _Trip:
    """A request whose prompt another engine computes, as a request of its own there."""

    command: Submit
    target: Placement  # where the request runs
    source: Placement  # where its prompt is computed
    began: float
    request: int = -1
    helper: int = -1  # the number of the prompt's request
    admitted: float = 0.0
    computed: int = 0  # tokens
    over: bool = False  # the request has been let go, or has ended
    sent: bool = False
    finished: bool = False  # the prompt's request


class ApartFleet(Fleet):
    """Sends each request to an engine for replies. Before it starts there, an engine for prompts computes the
    blocks that are missing, unless that is not worth it. If that fails, the request computes them itself.
    """

    def __init__(
        self,
        prompts: Mapping[int, EngineClient],
        replies: Mapping[int, EngineClient],
        block_size: int,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`closed`: called after the engines have ended."""
        self._sources, self._prompts = prompts.keys(), Router()
        self._block_size, self._closed = block_size, closed
        self._moves = threading.RLock()  # guards the fields below
        self._trips: dict[int, _Trip] = {}  # by the prompt's request
        self._firsts: dict[int, float] = {}  # when the first token of each running reply came
        self._token_seconds: float | None = None  # of a prompt; measured
        self._gap: float | None = None  # seconds between two tokens of a reply
        self._shares = True  # whether the prefix cache is on
        super().__init__({**prompts, **replies})

    def close(self) -> None:
        super().close()
        self._closed()

    def _router_of(self, replica: int) -> Router:
        return self._prompts if replica in self._sources else self._router

    def _submit(self, command: Submit, sink: Sink) -> Future[Any]:
        tokens = (*command.prompt, *command.reply_prefix)
        only_prompt = command.params.pooling or command.params.max_tokens in (0, 1)
        router = self._prompts if only_prompt else self._router
        target = router.route(tokens, command.salt, command.adapter)
        if target is None:
            return super()._submit(command, sink)
        source = None if only_prompt else self._source(command, tokens, target)
        if source is None:
            return self._send_to(target, command, sink)
        trip = _Trip(command, target, source, time.monotonic())
        self._router.started(target)  # it computes next to nothing of the prompt
        held = replace(command, held=True)
        accepted = self._send_to(target, held, partial(self._pass, trip, sink))
        accepted.add_done_callback(partial(self._depart, trip, tokens))
        return accepted

    def _source(self, command: Submit, tokens: Sequence[int], target: Placement) -> Placement | None:
        """The engine to compute the prompt; None if the engine of its reply is to do that.

        It is if that delays the replies there by no more than a token takes.
        """
        if command.params.prompt_logprobs is not None or not self._shares or target.cached == target.blocks:
            return None
        with self._moves:
            seconds, gap = self._token_seconds, self._gap
        if seconds is not None and gap is not None and target.missing * seconds <= gap:
            return None
        source = self._prompts.route(tokens, command.salt, command.adapter)
        if source is None:
            return None
        if source.names != target.names or source.missing > _FAR_MORE * target.missing:
            self._prompts.ended(source)
            return None
        return source

    # On threads of the replicas

    def _pass(self, trip: _Trip, sink: Sink, delta: Delta) -> None:
        """Pass on what the request's engine sends. Its end also ends its prompt's request."""
        if delta.last:
            with self._moves:
                lost, trip.over = not trip.over, True
            if lost:
                self._abandon(trip)
        sink(delta)

    def _depart(self, trip: _Trip, tokens: Sequence[int], accepted: Future[Accepted]) -> None:
        """The request has been accepted: have its prompt's whole blocks computed."""
        if accepted.exception() is not None:
            self._prompts.ended(trip.source)
            return
        trip.request = accepted.result().id
        command = trip.command
        helper = Submit(
            tuple(tokens[: trip.target.blocks * self._block_size]),
            SamplingParams(max_tokens=1, temperature=0.0),
            command.priority,
            command.deadline,
            command.salt,
            chat=command.chat,
            adapter=command.adapter,
            sends=trip.target.cached,
        )
        engine = self._replicas[trip.source.replica]
        engine.send(helper, partial(self._on_prompt, trip)).add_done_callback(partial(self._departed, trip))

    def _departed(self, trip: _Trip, accepted: Future[Accepted]) -> None:
        if (error := accepted.exception()) is not None:
            self._prompts.ended(trip.source)
            self._arrive(trip, error=str(error))
            return
        with self._moves:
            trip.helper = accepted.result().id
            self._trips[trip.helper] = trip
        if trip.over:
            self._abandon(trip)

    def _on_prompt(self, trip: _Trip, delta: Delta) -> None:
        if delta.last:
            self._prompts.ended(trip.source)
            if delta.finish is Finish.FAILED:
                self._arrive(trip, error=delta.error)

    def _abandon(self, trip: _Trip) -> None:
        if trip.helper >= 0:
            self._replicas[trip.source.replica].send(Abort((trip.helper,)))

    def _arrive(self, trip: _Trip, sent: int = 0, error: str = "") -> None:
        """Let the request start, with the blocks that were sent."""
        with self._moves:
            if trip.over:
                return
            trip.over = True
        self._replicas[trip.target.replica].send(Proceed(trip.request))
        now, source = time.monotonic(), trip.source.replica
        with self._events:
            self._bus.emit(
                PromptSent(
                    self._step, now, trip.request, source, trip.target.blocks, sent, now - trip.began, error
                )
            )

    def _on_event(self, replica: int, event: Event) -> None:
        if isinstance(event, RequestEvent):
            with self._moves:
                trip = self._trips.get(event.request)
            if trip is not None:  # a request that the fleet's subscribers do not know
                self._follow(trip, event)
                return
            self._measure(event)
        elif isinstance(event, Died | Restarting):
            self._forget(replica)
        elif isinstance(event, Switched) and event.name == "prefix_cache":
            self._shares = event.on
        super()._on_event(replica, event)

    def _follow(self, trip: _Trip, event: RequestEvent) -> None:
        match event:
            case Admitted(at=at, cached=cached):
                trip.admitted, trip.computed = at, trip.target.blocks * self._block_size - cached
            case BlocksSent(at=at, blocks=blocks):
                trip.sent = True
                if trip.computed > 0:
                    with self._moves:
                        each = (at - trip.admitted) / trip.computed
                        self._token_seconds = running_mean(self._token_seconds, each)
                self._arrive(trip, blocks)
            case Finished():
                trip.finished = True
        if trip.finished and (trip.sent or trip.over):
            with self._moves:
                self._trips.pop(trip.helper, None)

    def _measure(self, event: RequestEvent) -> None:
        """Measure how often replies get a token."""
        with self._moves:
            match event:
                case FirstToken(request=request, at=at):
                    self._firsts[request] = at
                case Finished(request=request, at=at, tokens=tokens):
                    first = self._firsts.pop(request, None)
                    if first is not None and tokens > 1:
                        self._gap = running_mean(self._gap, (at - first) / (tokens - 1))

    def _forget(self, replica: int) -> None:
        """The requests of a lost replica have ended."""
        with self._moves:
            for known in (self._trips, self._firsts):
                for request in [each for each in known if each // NUMBERS == replica]:
                    del known[request]
