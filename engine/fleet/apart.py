"""A fleet in which some engines compute prompts, and others the replies."""

import time
from collections.abc import Callable, Collection, Mapping
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
from engine.fleet import answers
from engine.fleet.answers import Answers
from engine.fleet.fleet import NUMBERS, Fleet
from engine.fleet.router import Placement, Router
from engine.host.client import EngineClient, Sink

_NEEDED = "prefix_cache"  # the switch of an engine without which nothing is sent
_FAR_MORE = 2  # times as many tokens to compute on the other side are not worth the way
_MEMORY = 0.2  # the weight of the newest sample of a mean


@dataclass(slots=True, eq=False)
class _RemotePrefill:
    """A request whose prompt another engine computes: a request of its own there, here called a prefill."""

    command: Submit
    target: Placement  # where the request runs
    source: Placement  # where the prefill does
    began: float
    request: int = -1
    prefill: int = -1
    admitted: float = 0.0
    computed: int = 0  # tokens
    over: bool = False  # the request has been let go, or has ended
    ends: int = 0  # of the prefill's last two events


def running_mean(old: float | None, new: float) -> float:
    return new if old is None else old + _MEMORY * (new - old)


@dataclass(slots=True)
class Pace:
    """Measured means, in seconds."""

    prompt_token: float | None = None  # to compute a token of a prompt
    gap: float | None = None  # between two tokens of a reply

    def brief(self, tokens: int) -> bool:
        """Whether computing these tokens of a prompt delays replies by at most the time of a token."""
        each, gap = self.prompt_token, self.gap
        return each is not None and gap is not None and tokens * each <= gap


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
        self._remote: dict[int, _RemotePrefill] = {}  # by prefill; `_events` guards this and the fields below
        self._held: dict[int, _RemotePrefill] = {}  # by the request that waits
        self._early: dict[int, Queued] = {}  # of requests of sources: a prefill is known once it is accepted
        self._firsts: dict[int, float] = {}  # when the first token of each running reply came
        self.pace = Pace()
        self._off = set[str | int]()  # what keeps blocks from being sent: the switch, or a replica's memory
        super().__init__({**prompts, **replies}, Router(apart=self._sources))
        first = next(iter(self._last.values()))
        self._block_size = first.block_size
        self._off |= {each.name for each in first.switches if not each.on} & {_NEEDED}
        for replica, shot in self._last.items():
            self._off |= {replica for tier in shot.tiers if tier.name == EXCHANGE and tier.problem}
        self._answers = Answers(prompts, self._awaited, self._give_up)

    def close(self) -> None:
        self._answers.close()
        super().close()
        self._closed()

    def _route(self, command: Submit, without: Collection[int]) -> Placement | None:
        """Prompts without a reply go to the engines for prompts. Either kind can replace the other."""
        only_prompt = bool(command.params.pooling) or command.params.max_tokens in (0, 1)
        first = self._in_group(command, apart=only_prompt, without=without)
        return first or self._in_group(command, apart=not only_prompt, without=without)

    def _in_group(self, command: Submit, *, apart: bool, without: Collection[int] = ()) -> Placement | None:
        tokens = (*command.prompt, *command.reply_prefix)
        return self._router.route(tokens, command.salt, command.adapter, apart=apart, without=without)

    def _send_to(self, route: Placement, command: Submit, sink: Sink) -> Future[Any]:
        if (source := self._source(command, route)) is None:
            return super()._send_to(route, command, sink)
        remote = _RemotePrefill(command, route, source, time.monotonic())
        self._router.started(route)  # it computes next to nothing of the prompt
        accepted = super()._send_to(route, replace(command, held=True), partial(self._pass, remote, sink))
        accepted.add_done_callback(partial(self._begin_prefill, remote))
        return accepted

    def _source(self, command: Submit, target: Placement) -> Placement | None:
        """The engine that computes the prompt. None: the one of the reply, because that delays other replies
        by at most the time of a token, or because it would compute much less.
        """
        missing = target.missing + (target.cached - target.there) * self._block_size
        with self._events:
            brief, sends = self.pace.brief(missing), not self._off
        if brief or not sends or target.there == target.blocks or target.replica in self._sources:
            return None
        if command.params.prompt_logprobs is not None:  # these are of the whole prompt
            return None
        if (source := self._in_group(command, apart=True)) is None:
            return None
        hangs = source.replica in self._answers.silent
        if hangs or source.names != target.names or source.missing > _FAR_MORE * missing:
            self._router.ended(source)
            return None
        return source

    # On threads of the replicas

    def _pass(self, remote: _RemotePrefill, sink: Sink, delta: Delta) -> None:
        """Pass on what the request's engine sends. Its end also ends the prefill."""
        if delta.last:
            with self._events:
                lost, remote.over = not remote.over, True
                self._held.pop(remote.request, None)
            if lost:
                self._abandon(remote)
        sink(delta)

    def _begin_prefill(self, remote: _RemotePrefill, accepted: Future[Accepted]) -> None:
        """The request has been accepted: have its prompt's whole blocks computed."""
        if accepted.exception() is not None:
            self._router.ended(remote.source)
            return
        remote.request = accepted.result().id
        command, replica = remote.command, remote.source.replica
        if not self._takes(replica):
            self._router.ended(remote.source)
            self._proceed(remote, error=f"replica {replica} takes no more prompts")
            return
        prefill = Submit(
            (*command.prompt, *command.reply_prefix)[: remote.target.blocks * self._block_size],
            SamplingParams(max_tokens=1, temperature=0.0),
            command.priority,
            command.deadline,
            command.salt,
            chat=command.chat,
            adapter=command.adapter,
            sends=remote.target.there,
        )
        with self._events:
            if not remote.over:
                self._held[remote.request] = remote
        with self._events:  # so that the prefill is known before any of its events are heard
            begun = self._begun(replica, prefill, partial(self._on_prefill, remote))
            begun.add_done_callback(partial(self._prefill_begun, remote))

    def _prefill_begun(self, remote: _RemotePrefill, accepted: Future[Accepted]) -> None:
        if (error := accepted.exception()) is not None:
            self._router.ended(remote.source)
            self._proceed(remote, error=str(error))
            return
        with self._events:
            remote.prefill = accepted.result().id
            self._remote[remote.prefill] = remote
        if remote.over:
            self._abandon(remote)

    def _on_prefill(self, remote: _RemotePrefill, delta: Delta) -> None:
        if delta.last:
            self._router.ended(remote.source)
            if delta.finish is Finish.FAILED:
                self._proceed(remote, error=delta.error)

    def _abandon(self, remote: _RemotePrefill) -> None:
        if remote.prefill >= 0:
            self._replicas[remote.source.replica].send(Abort((remote.prefill,)))

    def _proceed(self, remote: _RemotePrefill, sent: int = 0, way: str = "", error: str = "") -> None:
        """Let the request start, with the blocks that were sent."""
        with self._events:
            if remote.over:
                return
            remote.over = True
            self._held.pop(remote.request, None)
            now, request = time.monotonic(), remote.request
            where, seconds = (remote.source.replica, remote.target.blocks), now - remote.began
            self._bus.emit(PromptSent(self._step, now, request, *where, sent, seconds, error, way))
            self._replicas[remote.target.replica].send(Proceed(request))

    def _awaited(self) -> set[int]:
        """The engines that compute prompts for requests that wait."""
        with self._events:
            return {each.source.replica for each in self._held.values()}

    def _give_up(self, replica: int) -> None:
        """An engine does not answer: its prompts are computed where their replies are."""
        with self._events:
            held = [each for each in self._held.values() if each.source.replica == replica]
        for remote in held:
            self._proceed(remote, error=f"replica {replica} did not answer within {answers.WITHIN:g} s")
            self._abandon(remote)

    def _on_event(self, replica: int, event: Event) -> None:
        with self._events:
            if replica in self._sources and self._hides(event):
                return
            self._note(replica, event)
        super()._on_event(replica, event)

    def _hides(self, event: Event) -> bool:
        """Whether an event of a source is about a prefill, which subscribers of the fleet do not know."""
        match event:
            case Queued(request=request):  # this may come before the answer that it has been accepted
                self._early[request] = event
                return True
            case Transferred(error="", load=False) if event.tier == EXCHANGE:
                return True
            case RequestEvent(request=request):
                early = self._early.pop(request, None)
                if (remote := self._remote.get(request)) is not None:
                    self._follow(remote, event)
                    return True
                if early is not None:
                    super()._on_event(request // NUMBERS, early)
        return False

    def _follow(self, remote: _RemotePrefill, event: RequestEvent) -> None:
        match event:
            case Admitted(at=at, cached=cached):
                remote.admitted, remote.computed = at, remote.target.blocks * self._block_size - cached
            case BlocksSent(at=at, blocks=blocks, way=way):
                remote.ends += 1
                if remote.computed > 0:
                    each = (at - remote.admitted) / remote.computed
                    self.pace.prompt_token = running_mean(self.pace.prompt_token, each)
                self._proceed(remote, blocks, way)
            case Finished(error=error):
                remote.ends += 2 if error else 1  # then nothing is sent
        if remote.ends >= 2:
            self._remote.pop(remote.prefill, None)

    def _note(self, replica: int, event: Event) -> None:
        """Measure how often replies get a token, forget what a lost replica ran, and note what is off."""
        match event:
            case FirstToken(request=request, at=at):
                self._firsts[request] = at
            case Finished(request=request, at=at, tokens=tokens):
                if (first := self._firsts.pop(request, None)) is not None and tokens > 1:
                    self.pace.gap = running_mean(self.pace.gap, (at - first) / (tokens - 1))
            case Died(error=error) | Restarting(error=error):
                for remote in [each for each in self._remote.values() if each.source.replica == replica]:
                    self._proceed(remote, error=error)  # it may have ended before its blocks were sent
                for known in (self._remote, self._early, self._firsts):
                    for request in [each for each in known if each // NUMBERS == replica]:
                        del known[request]
                self._off.discard(replica)
            case Switched(name=name, on=on) if name == _NEEDED:
                (self._off.discard if on else self._off.add)(name)
            case TierProblem(tier=tier, problem=problem) if tier == EXCHANGE:
                (self._off.add if problem else self._off.discard)(replica)
