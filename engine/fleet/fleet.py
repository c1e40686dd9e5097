"""Several engines behind one client."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from engine.api.commands import (
    Abort,
    Accepted,
    Command,
    DropAdapter,
    Fork,
    GetSnapshot,
    LoadAdapter,
    Preempt,
    ReportBlocks,
    SetKvScheme,
    SetLatencyTarget,
    SetQuantization,
    SetSwitch,
    Submit,
    Update,
)
from engine.api.errors import EngineError
from engine.api.events import (
    AdapterChanged,
    BlockNamesChanged,
    Bus,
    Delta,
    Died,
    Event,
    Finished,
    Handler,
    PromptRouted,
    Quantized,
    Quantizing,
    Queued,
    Recached,
    ReplicaChanged,
    Restarted,
    Restarting,
    Switched,
    log,
)
from engine.api.request import Finish
from engine.api.snapshot import Snapshot
from engine.fleet.merged import merged, replica_view
from engine.fleet.router import Placement, Router
from engine.host.client import EngineClient, Sink
from engine.text.chat import ChatFormat

T = TypeVar("T")

NUMBERS = 2**42  # of requests in one replica, so that a request's number says where it runs
_ANSWERS_WITHIN = 2.0  # seconds; a replica that takes longer is shown as it was
_SAME_EVERYWHERE = (Switched, Quantizing, Quantized, Recached, AdapterChanged)  # all replicas report them
_KEPT = (SetSwitch, SetLatencyTarget, SetQuantization, SetKvScheme, LoadAdapter, DropAdapter)
_RENAMING = (Quantized, Recached, AdapterChanged)  # after these, blocks have other names


class Fleet(EngineClient):
    """Sends each prompt to the replica that the router chooses, and commands to where they belong.

    The requests of replica n must be numbered from n * NUMBERS on, and the fleet closes the replicas. The
    loss of a replica fails its own requests only; the fleet is dead when all are.
    """

    def __init__(self, replicas: Mapping[int, EngineClient], router: Router | None = None) -> None:
        self._replicas = dict(replicas)
        self._chat = ChatFormat(next(iter(self._replicas.values())).tokenizer)
        self._router, self._bus = router or Router(), Bus()
        self._events = threading.RLock()  # replicas report on threads of their own; guards the fields below
        self._lost: dict[int, str] = {}  # replicas that cannot run requests now, and why
        self._dead: set[int] = set()  # those of them that are not started again
        self._alive: dict[int, int] = {}  # tokens of each request that is queued or running
        self._settings: dict[tuple[str, str], Command[Any]] = {}  # that differ from those at the start
        self._step = 0
        self._threads = ThreadPoolExecutor(len(self._replicas), "fleet")
        self._caller = ThreadPoolExecutor(1, "fleet-snapshot")
        self._asked: dict[int, Future[Snapshot]] = {}  # by replica; used by one thread at a time
        self._asking = threading.Lock()
        self._last = {number: each.snapshot() for number, each in self._replicas.items()}
        for number, each in self._replicas.items():
            each.subscribe(partial(self._on_event, number))
            self._learn(number).result()

    def send(self, command: Command[T], sink: Sink | None = None) -> Future[T]:
        return self._send(command, sink)

    def _send(self, command: Command[Any], sink: Sink | None) -> Future[Any]:
        match command:
            case Submit() if sink is not None:
                return self._submit(command, sink)
            case Fork(id=id) | Update(id=id) | Preempt(id=id):
                return self._owner(id).send(command, sink)
            case Abort(ids=ids):
                parts: dict[EngineClient, list[int]] = {}
                for id in ids:
                    parts.setdefault(self._owner(id), []).append(id)
                return _all([client.send(Abort(tuple(own))) for client, own in parts.items()])
            case GetSnapshot():
                return self._caller.submit(self.snapshot)
        whole = _all([self._replicas[number].send(command) for number in self._serving()])
        if isinstance(command, _KEPT):
            whole.add_done_callback(partial(self._keep, command))
        return whole

    def _keep(self, command: Command[Any], done: Future[Any]) -> None:
        """Remember a setting, for replicas that start again."""
        if done.exception() is None:
            kind = "adapter" if isinstance(command, LoadAdapter | DropAdapter) else command.verb
            with self._events:
                self._settings[kind, getattr(command, "name", "")] = command

    def _owner(self, id: int) -> EngineClient:
        """The replica of a request. A number that none has given is refused by any."""
        return self._replicas.get(id // NUMBERS) or next(iter(self._replicas.values()))

    def _router_of(self, replica: int) -> Router:
        """The router that sends prompts to a replica."""
        return self._router

    def _serving(self) -> list[int]:
        """The replicas that can run commands; if there are none, all, since each says why."""
        with self._events:
            return [each for each in self._replicas if each not in self._lost] or [*self._replicas]

    def _submit(self, command: Submit, sink: Sink) -> Future[Any]:
        tokens = (*command.prompt, *command.reply_prefix)
        route = self._router.route(tokens, command.salt, command.adapter)
        if route is None:
            return self._replicas[self._serving()[0]].send(command, sink)
        return self._send_to(route, command, sink)

    def _send_to(self, route: Placement, command: Submit, sink: Sink) -> Future[Any]:
        accepted = self._replicas[route.replica].send(command, partial(self._deliver, route, sink))
        accepted.add_done_callback(partial(self._routed, route))
        return accepted

    def _deliver(self, route: Placement, sink: Sink, delta: Delta) -> None:
        if delta.tokens or delta.last:
            self._router_of(route.replica).started(route)
        if (tokens := self._alive.get(delta.request)) is not None:  # only this thread changes it
            self._alive[delta.request] = tokens + len(delta.tokens)
        if delta.last:
            self._router_of(route.replica).ended(route)
        sink(delta)

    def _routed(self, route: Placement, accepted: Future[Accepted]) -> None:
        if accepted.exception() is not None:
            self._router_of(route.replica).ended(route)
            return
        where = (route.replica, route.cached, route.blocks, route.best)
        with self._events:
            self._bus.emit(PromptRouted(self._step, time.monotonic(), accepted.result().id, *where))

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event, on threads of the replicas but never at once."""
        return self._bus.subscribe(handler)

    def close(self) -> None:
        with ThreadPoolExecutor(len(self._replicas)) as closing:
            for each in self._replicas.values():
                closing.submit(each.close)
        for pool in (self._caller, self._threads):
            pool.shutdown(wait=False, cancel_futures=True)
        self._chat.close()

    # Snapshots

    def snapshot(self) -> Snapshot:
        """Return the snapshots of all replicas as one. Waits for a step of each, but not for long."""
        with self._asking:
            return self._merged()

    def _merged(self) -> Snapshot:
        silent = set()
        for number, each in self._replicas.items():
            if number not in self._asked:
                self._asked[number] = self._threads.submit(each.snapshot)
        until = time.monotonic() + _ANSWERS_WITHIN
        for number, asked in [*self._asked.items()]:
            try:
                self._last[number] = asked.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                silent.add(number)
                continue
            except EngineError as error:
                self._last[number] = self._last[number].ended(str(error))
            del self._asked[number]
        shots = [self._last[number] for number in self._replicas]
        views = [
            replica_view(number, shot, self._router_of(number).queue(number), silent=number in silent)
            for number, shot in zip(self._replicas, shots, strict=True)
        ]
        return merged(shots, views)

    # On threads of the replicas

    def _learn(self, replica: int) -> Future[Any]:
        """Ask a replica for its blocks, then send it prompts."""
        asked = self._replicas[replica].send(ReportBlocks())
        known: Future[None] = Future()

        def put(answer: Future[Any]) -> None:
            if (error := answer.exception()) is None:
                self._router_of(replica).put(replica, answer.result())
            else:
                log.warning("replica %d gets no prompts: %s", replica, error)
            known.set_result(None)

        asked.add_done_callback(put)
        return known

    def _on_event(self, replica: int, event: Event) -> None:
        if type(event) is BlockNamesChanged:
            self._router_of(replica).report(replica, event.added, event.dropped)
            return
        with self._events:
            self._step = event.step
            match event:
                case Died(error=error) | Restarting(error=error):
                    self._lose(replica, event, error)
                    return
                case Restarted():
                    self._lost.pop(replica, None)
                    self._bus.emit(ReplicaChanged(0, event.at, replica, "ready", ""))
                case Queued(request=request):
                    self._alive[request] = 0
                case Finished(request=request):
                    self._alive.pop(request, None)
            if self._passes(replica, event):
                self._bus.emit(event)
        if isinstance(event, Restarted):
            self._restore(replica)
        elif isinstance(event, _RENAMING):
            self._learn(replica)

    def _restore(self, replica: int) -> None:
        """Give a replica that has started again the settings of the others, then prompts."""
        with self._events:
            settings = [*self._settings.values()]
        for command in settings:
            self._replicas[replica].send(command).add_done_callback(_log_failure)
        self._learn(replica)

    def _passes(self, replica: int, event: Event) -> bool:
        """Whether an event is for the fleet's subscribers. What all replicas report is passed on once."""
        if isinstance(event, Restarted):
            return False
        if isinstance(event, _SAME_EVERYWHERE) and not getattr(event, "error", ""):
            return replica == self._serving()[0]
        return True

    def _lose(self, replica: int, event: Event, error: str) -> None:
        """End a lost replica's requests for subscribers, since it cannot report that itself."""
        self._router_of(replica).remove(replica)
        self._lost[replica] = error
        for request in [each for each in self._alive if each // NUMBERS == replica]:
            tokens = self._alive.pop(request)
            self._bus.emit(Finished(event.step, event.at, request, Finish.FAILED.value, tokens, error))
        dead = isinstance(event, Died)
        if dead:
            self._dead.add(replica)
        self._bus.emit(ReplicaChanged(event.step, event.at, replica, "dead" if dead else "restarting", error))
        if len(self._dead) == len(self._replicas):
            self._bus.emit(Died(event.step, event.at, f"all replicas have ended; the last: {error}"))


def _log_failure(done: Future[Any]) -> None:
    if (error := done.exception()) is not None:
        log.warning("a replica that has started again differs from the others: %s", error)


def _all(parts: Sequence[Future[Any]]) -> Future[Any]:
    """A future of the first part's result once all parts are done, or of the first error."""
    whole, left, gate = Future[Any](), [len(parts)], threading.Lock()

    def done(_: Future[Any]) -> None:
        with gate:
            left[0] -= 1
            if left[0]:
                return
        errors = [error for each in parts if (error := each.exception()) is not None]
        if errors:
            whole.set_exception(errors[0])
        else:
            whole.set_result(parts[0].result())

    for each in parts:
        each.add_done_callback(done)
    if not parts:  # no request to abort
        whole.set_result(None)
    return whole
