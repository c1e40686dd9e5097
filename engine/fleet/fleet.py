"""Several engines behind one client."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from engine.api.commands import (
    Abort,
    Accepted,
    Command,
    DrainReplica,
    Fork,
    GetSnapshot,
    Preempt,
    ReportBlocks,
    SetKvScheme,
    StartReplica,
    Submit,
    Update,
)
from engine.api.errors import BadInput, Ending, EngineError, refuse_beside
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
from engine.fleet.futures import all_done, answered, has_ended, refusal
from engine.fleet.kept import KeptSettings
from engine.fleet.merged import merged, replica_view
from engine.fleet.router import Placement, Router
from engine.host.client import EngineClient, Sink
from engine.host.restarting import RestartingEngine
from engine.text.chat import ChatFormat

T = TypeVar("T")

NUMBERS = 2**42  # of requests in one replica, so that a request's number says where it runs
ANSWERS_WITHIN = 2.0  # seconds; a replica that takes longer is shown as it was
_SAME_EVERYWHERE = (Switched, Quantizing, Quantized, Recached, AdapterChanged)  # all replicas report them
_RENAMING = (Restarted, Quantized, Recached, AdapterChanged)  # after these, blocks have other names


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
        self._unfinished = Counter[int]()  # requests sent to each replica that have not ended
        self._leaving: dict[int, bool] = {}  # replicas that drain, and whether they stay stopped then
        self._ending: set[int] = set()  # those whose requests have ended, and whose processes are ending
        self._stopped: set[int] = set()
        self._alive: dict[int, int] = {}  # tokens of each request that is queued or running
        self._settings = KeptSettings()
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
            case Fork(id=id) if sink is not None:
                return self._fork(id // NUMBERS, command, sink)
            case Update(id=id) | Preempt(id=id):
                return self._owner(id).send(command, sink)
            case Abort(ids=ids):
                parts: dict[EngineClient, list[int]] = {}
                for id in ids:
                    parts.setdefault(self._owner(id), []).append(id)
                return all_done([client.send(Abort(tuple(own))) for client, own in parts.items()])
            case GetSnapshot():
                return self._caller.submit(self.snapshot)
            case DrainReplica(replica=replica, stop=stop):
                return answered(partial(self._drain, replica, stop=stop))
            case StartReplica(replica=replica):
                return answered(partial(self._start, replica))
        with self._events:  # so that all replicas get settings in the same order
            if isinstance(command, SetKvScheme) and (alive := self._unfinished.total()):
                return answered(partial(refuse_beside, alive))  # or idle replicas change alone
            answers = {number: self._replicas[number].send(command) for number in self._serving()}
            self._settings.sent(command, answers)
        return all_done([*answers.values()])

    def _owner(self, id: int) -> EngineClient:
        """The replica of a request. A number that none has given is refused by any."""
        return self._replicas.get(id // NUMBERS) or next(iter(self._replicas.values()))

    def _serving(self) -> list[int]:
        """The replicas that can run commands; if none can, all (each says why), starting ones first."""
        with self._events:
            able = [each for each in self._replicas if each not in self._lost]
            return able or sorted(self._replicas, key=(self._dead | self._stopped).__contains__)

    def _submit(self, command: Submit, sink: Sink) -> Future[Any]:
        ended = set[int]()  # replicas that cannot run it, though their end has not been reported yet
        while (route := self._route(command, ended)) is not None:
            if self._takes(route.replica):  # else it has begun to drain since
                accepted = self._send_to(route, command, sink)
                if not has_ended(accepted):
                    return accepted
                ended.add(route.replica)
        return self._unrouted(self._serving()[0], command, sink)

    def _route(self, command: Submit, without: Collection[int]) -> Placement | None:
        tokens = (*command.prompt, *command.reply_prefix)
        return self._router.route(tokens, command.salt, command.adapter, without=without)

    def _send_to(self, route: Placement, command: Submit, sink: Sink) -> Future[Any]:
        accepted = self._begun(route.replica, command, partial(self._deliver, route, sink))
        accepted.add_done_callback(partial(self._routed, route))
        return accepted

    def _fork(self, replica: int, command: Fork, sink: Sink) -> Future[Any]:
        if replica not in self._replicas:
            return self._owner(command.id).send(command, sink)
        return self._unrouted(replica, command, sink)

    def _unrouted(self, replica: int, command: Command[Any], sink: Sink) -> Future[Any]:
        if self._takes(replica):
            return self._begun(replica, command, sink)
        if replica in self._leaving:
            return refusal(Ending(f"replica {replica} is draining, so it starts no more requests"))
        return self._replicas[replica].send(command, sink)  # which says why it cannot run

    def _takes(self, replica: int) -> bool:
        """Count a request to a replica, unless it takes none."""
        with self._events:
            if replica in self._leaving or replica in self._lost:
                return False
            self._unfinished[replica] += 1
            return True

    def _begun(self, replica: int, command: Command[Any], sink: Sink) -> Future[Any]:
        """Send a counted request."""

        def deliver(delta: Delta) -> None:
            if not delta.last:
                sink(delta)
                return
            with self._events:
                self._unfinished[replica] -= 1  # before its sender knows, who may change the cache then
            sink(delta)
            with self._events:
                self._leave_if_idle(replica)

        accepted = self._replicas[replica].send(command, deliver)
        accepted.add_done_callback(lambda done: self._one_less(replica) if done.exception() else None)
        return accepted

    def _one_less(self, replica: int) -> None:
        with self._events:
            self._unfinished[replica] -= 1
            self._leave_if_idle(replica)

    def _deliver(self, route: Placement, sink: Sink, delta: Delta) -> None:
        if delta.tokens or delta.last:
            self._router.started(route)
        if (tokens := self._alive.get(delta.request)) is not None:  # only this thread changes it
            self._alive[delta.request] = tokens + len(delta.tokens)
        if delta.last:
            self._router.ended(route)
        sink(delta)

    def _routed(self, route: Placement, accepted: Future[Accepted]) -> None:
        if accepted.exception() is not None:
            self._router.ended(route)
            return
        where = (route.replica, route.cached, route.blocks, route.best)
        with self._events:
            self._bus.emit(PromptRouted(self._step, time.monotonic(), accepted.result().id, *where))

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event, on several threads but never at once."""
        return self._bus.subscribe(handler)

    def close(self) -> None:
        with ThreadPoolExecutor(len(self._replicas)) as closing:
            for each in self._replicas.values():
                closing.submit(each.close)
        for pool in (self._caller, self._threads):
            pool.shutdown(wait=False, cancel_futures=True)
        self._chat.close()

    # Draining

    def _drain(self, replica: int, *, stop: bool) -> None:
        self._restartable(replica)
        with self._events:
            if replica in self._ending:
                self._leaving[replica] = stop
                return
            if replica in self._stopped or (replica in self._lost and not stop):
                raise BadInput(f"replica {replica} does not run: {self._lost[replica]}", field="replica")
            self._leaving[replica] = stop
            self._router.remove(replica)
            self._changed(replica, "draining")
            self._leave_if_idle(replica)

    def _leave_if_idle(self, replica: int) -> None:
        if replica in self._leaving and not self._unfinished[replica]:
            threading.Thread(target=self._leave, args=(replica,), name="fleet-drained", daemon=True).start()

    def _leave(self, replica: int) -> None:
        """End the process of a drained replica, and start another one if it is not to stay stopped."""
        client = self._restartable(replica)
        with self._events:
            if replica not in self._leaving or replica in self._ending or self._unfinished[replica]:
                return  # it takes prompts again, or another call is at it
            self._ending.add(replica)
            self._lost[replica] = "it was stopped"
        with suppress(EngineError, TimeoutError):  # after the answer to what ended its last request
            client.send(GetSnapshot()).result(ANSWERS_WITHIN)
        client.stop_process()
        with self._events:
            self._ending.discard(replica)
            self._dead.discard(replica)
            if stop := self._leaving.pop(replica):
                self._stopped.add(replica)
            self._changed(replica, "stopped" if stop else "restarting")
        if not stop:
            client.start_process()

    def _start(self, replica: int) -> None:
        client = self._restartable(replica)
        with self._events:
            if replica in self._ending:
                self._leaving[replica] = False
                return
            drains = self._leaving.pop(replica, None) is not None
            if drains:
                self._changed(replica, "ready")
            elif replica in self._stopped or replica in self._dead:
                self._stopped.discard(replica)
                self._dead.discard(replica)
                self._changed(replica, "restarting")
            else:
                return  # it runs, or is being started
        if drains:
            self._learn(replica)
        else:
            client.start_process()

    def _restartable(self, replica: int) -> RestartingEngine:
        if (client := self._replicas.get(replica)) is None:
            numbers = ", ".join(map(str, self._replicas))
            raise BadInput(f"there is no replica {replica}; the fleet has {numbers}", field="replica")
        if not isinstance(client, RestartingEngine):
            raise BadInput(f"replica {replica} has no process of its own that can stop", field="replica")
        return client

    def _changed(self, replica: int, state: str, error: str = "") -> None:
        self._bus.emit(ReplicaChanged(self._step, time.monotonic(), replica, state, error))

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
        until = time.monotonic() + ANSWERS_WITHIN
        for number, asked in [*self._asked.items()]:
            try:
                self._last[number] = asked.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                silent.add(number)
                continue
            except EngineError as error:
                self._last[number] = self._last[number].ended(str(error))
            del self._asked[number]
        with self._events:
            shots, leaving = [*map(self._known, self._replicas)], {*self._leaving}
        queue = self._router.queue
        views = [
            replica_view(each, shot, queue(each), silent=each in silent, draining=each in leaving)
            for each, shot in zip(self._replicas, shots, strict=True)
        ]
        return merged(shots, views)

    def _known(self, replica: int) -> Snapshot:
        """The replica's last snapshot, or its end if it was lost after that."""
        shot, why = self._last[replica], self._lost.get(replica)
        if why is None or shot.state != "ready" or replica in self._leaving:
            return shot
        state = "stopped" if replica in self._stopped else "dead" if replica in self._dead else "restarting"
        return replace(shot.ended(why), state=state)

    # On threads of the replicas

    def _learn(self, replica: int) -> Future[Any]:
        """Ask a replica for its blocks, then send it prompts."""
        asked = self._replicas[replica].send(ReportBlocks())
        known: Future[None] = Future()

        def put(answer: Future[Any]) -> None:
            if (error := answer.exception()) is None:
                with self._events:
                    if replica not in self._leaving and replica not in self._lost:
                        self._router.put(replica, answer.result())
            else:
                log.warning("replica %d gets no prompts: %s", replica, error)
            known.set_result(None)

        asked.add_done_callback(put)
        return known

    def _on_event(self, replica: int, event: Event) -> None:
        if type(event) is BlockNamesChanged:
            self._router.report(replica, event.added, event.dropped)
            return
        with self._events:
            self._step = event.step
            match event:
                case Died(error=error) | Restarting(error=error):
                    self._lose(replica, event, error)
                    return
                case Restarted() if replica in self._stopped:
                    return  # it was stopped while it started
                case Restarted():
                    self._settings.restore(replica, self._replicas[replica].send)
                    self._lost.pop(replica, None)
                    self._changed(replica, "ready")
                case Queued(request=request):
                    self._alive[request] = 0
                case Finished(request=request):
                    self._alive.pop(request, None)
            if self._passes(replica, event):
                self._bus.emit(event)
        if isinstance(event, _RENAMING):
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
        self._router.remove(replica)
        self._lost[replica] = error
        for request in [each for each in self._alive if each // NUMBERS == replica]:
            tokens = self._alive.pop(request)
            self._bus.emit(Finished(event.step, event.at, request, Finish.FAILED.value, tokens, error))
        dead = isinstance(event, Died)
        if dead:
            self._dead.add(replica)
            log.error("replica %d: %s; it is not started again by itself", replica, error)
        self._changed(replica, "dead" if dead else "restarting", error)
        if len(self._dead) == len(self._replicas):
            self._bus.emit(Died(event.step, event.at, f"all replicas have ended; the last: {error}"))
