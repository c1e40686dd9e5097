"""The engine for code on the event loop: nothing here blocks the loop."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

from engine.api.commands import Abort, Accepted, Command
from engine.api.errors import EngineError
from engine.api.events import Admitted, Event, FirstToken
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.wire import encode_snapshot
from engine.host.client import EngineClient, Sink
from engine.host.handover import call_on
from engine.host.prompts import Prompt
from engine.host.stream import Stream
from engine.server.http.sse import encoded
from engine.server.notifier import Notifier
from engine.server.urgency import Urgency

log = logging.getLogger("minichat.server")

T = TypeVar("T")
_WORKERS = 32  # threads for templates and tokenization; none of them waits for a step
_SHORT = 4096  # token ids that are checked and sent on the loop: a thread would take longer
_NOTED = 8192  # requests whose cached token count or first token has not been read yet


class AsyncEngine:
    """Sends commands, whose results may take a step, and prepares prompts in threads."""

    def __init__(self, host: EngineClient) -> None:
        self.host, self.notifier = host, Notifier()
        self._loop = asyncio.get_running_loop()
        self._workers = _started_pool(_WORKERS, "minichat-submit")
        self._callers = ThreadPoolExecutor(4, "minichat-call")  # snapshots do not queue behind long prompts
        self._reader = ThreadPoolExecutor(1, "minichat-read")  # a second would only contend for the GIL
        self._to_abort: list[int] = []
        self._snapshot: asyncio.Future[Snapshot] | None = None
        self._snapshot_json: asyncio.Future[bytes] | None = None
        self._cached: dict[int, int] = {}
        self._first_at: dict[int, float] = {}
        self._unsubscribe = host.subscribe(self._on_event)

    async def send(self, command: Command[T]) -> T:
        """Send a command and return its result. Raises the engine's error."""
        return await asyncio.wrap_future(self.host.send(command))

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        urgency: Urgency,
        salt: bytes,
        reply_prefix: Sequence[int],
        adapter: str,
        wake: Sink,
    ) -> "asyncio.Future[Stream]":
        """Start a request, at once or on a thread. Then either wait for `accepted`, or `drop` it.

        `wake`: called on the engine's thread after each delta, perhaps before the request is `accepted`.
        """
        submit = partial(
            self.host.submit,
            prompt,
            params,
            priority=urgency.priority,
            deadline=urgency.deadline,
            salt=salt,
            reply_prefix=reply_prefix,
            adapter=adapter,
            wake=wake,
        )
        if isinstance(prompt, list) and 0 < len(prompt) <= _SHORT and type(prompt[0]) is int:
            return self._started(submit())
        return self._loop.run_in_executor(self._workers, submit)

    def fork(self, id: int, params: SamplingParams, wake: Sink) -> "asyncio.Future[Stream]":
        """Start a request that continues from a running one."""
        return self._started(self.host.fork(id, params, wake=wake))

    def _started(self, stream: Stream) -> "asyncio.Future[Stream]":
        started = self._loop.create_future()
        started.set_result(stream)
        return started

    async def accepted(self, started: "asyncio.Future[Stream]") -> Stream:
        """Return the stream once the engine has accepted the request. Raises the engine's error."""
        stream = started.result() if started.done() else await asyncio.shield(started)
        await asyncio.wrap_future(stream.accepted)
        return stream

    def drop(self, started: "asyncio.Future[Stream]") -> None:
        """Abort a request that has lost its reader, as soon as the engine has accepted it."""

        def end(accepted: Future[Accepted]) -> None:
            if accepted.exception() is None:
                call_on(self._loop, self.abort, [accepted.result().id])

        def once_started(done: "asyncio.Future[Stream]") -> None:
            if not done.cancelled() and done.exception() is None:
                done.result().accepted.add_done_callback(end)

        started.add_done_callback(once_started)

    def cached_tokens(self, request: int) -> int:
        """Return how many tokens came from the prefix cache. Call it once, after the first delta."""
        return self._cached.pop(request, 0)

    def first_token_at(self, request: int) -> float | None:
        """Return when the engine had the first token, on the monotonic clock; None if that is not known."""
        return self._first_at.get(request)

    def forget(self, request: int) -> None:
        """Drop what was noted of a request that has ended."""
        self._cached.pop(request, None)
        self._first_at.pop(request, None)

    def abort(self, requests: Iterable[int]) -> None:
        """Abort requests before the next step. Calls in one iteration of the loop are sent as one command."""
        if not self._to_abort:
            self._loop.call_soon(self._abort_all)
        self._to_abort += requests

    async def work(self, work: Callable[[], T]) -> T:
        """Run slow work in a thread. Snapshots have their own threads and do not wait for it."""
        return await self._loop.run_in_executor(self._workers, work)

    async def read(self, work: Callable[[], T]) -> T:
        """Run the parsing of a long request in a thread, one at a time."""

        def read() -> T:
            gc.disable()  # each collection would traverse everything parsed so far, and hold the GIL
            try:
                return work()
            finally:
                gc.enable()

        return await self._loop.run_in_executor(self._reader, read)

    async def snapshot(self) -> Snapshot:
        """Return a snapshot. Callers that arrive while one is being made share it."""
        if self._snapshot is None or self._snapshot.done():
            self._snapshot = self._loop.run_in_executor(self._callers, self.host.snapshot)
        return await asyncio.shield(self._snapshot)

    async def snapshot_json(self) -> bytes:
        """Return a snapshot as JSON. With a large cache this takes milliseconds, so it runs in a thread."""
        if self._snapshot_json is None or self._snapshot_json.done():
            self._snapshot_json = self._loop.run_in_executor(self._callers, self._encode_snapshot)
        return await asyncio.shield(self._snapshot_json)

    def _encode_snapshot(self) -> bytes:
        """A snapshot, with the texts of the tokens of searches, so that a screen can show them at once."""
        shot = self.host.snapshot()
        value = encode_snapshot(shot)
        if shot.beams:
            found = (each for view in shot.beams for each in (*view.live, *view.done, *view.dropped))
            value["words"] = self.host.words({token for each in found for token in each.tokens})
        return encoded(value)

    def close(self) -> None:
        self._unsubscribe()
        for pool in (self._workers, self._callers, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)

    def _on_event(self, event: Event) -> None:
        """Runs on the engine's thread."""
        if type(event) is Admitted:
            _note(self._cached, event.request, event.cached)
        elif type(event) is FirstToken:
            _note(self._first_at, event.request, event.at)

    def _abort_all(self) -> None:
        ids, self._to_abort = self._to_abort, []
        self.host.send(Abort(tuple(ids))).add_done_callback(_log_failure)
        for id in ids:
            self.forget(id)


def _note(notes: dict[int, T], request: int, value: T) -> None:
    notes[request] = value
    if len(notes) > _NOTED:  # forks and extra samples are never read
        notes.pop(next(iter(notes)), None)


def _started_pool(count: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads run. Each start waits for the GIL, which takes 5 ms on a busy loop."""
    pool, together = ThreadPoolExecutor(count, name), Barrier(count)
    for _ in range(count):
        pool.submit(together.wait, 5.0)  # no longer, in case the pool is closed before all have started
    return pool


def _log_failure(done: Future[None]) -> None:
    if (error := done.exception()) and not isinstance(error, EngineError):
        log.error("an abort failed", exc_info=error)
