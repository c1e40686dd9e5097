"""The engine as the event loop sees it: nothing here blocks the loop."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from engine.api.commands import Abort, Begun, Command
from engine.api.errors import EngineError
from engine.api.events import Admitted, Event
from engine.api.params import SamplingParams
from engine.api.snapshot import Snapshot
from engine.api.wire import encode_snapshot
from engine.host.handover import call_on
from engine.host.prompts import Prompt
from engine.host.protocol import EngineHost
from engine.host.stream import Stream
from engine.server.http.sse import encoded
from engine.server.notifier import Notifier

log = logging.getLogger("minichat.server")

T = TypeVar("T")
_WORKERS = 32  # for templates, tokenizing and texts; none of them waits for a step
_CACHED = 8192  # requests whose cached tokens nobody has asked for yet


class AsyncEngine:
    """Sends commands, whose answers may take a step, and works on prompts in threads."""

    def __init__(self, host: EngineHost) -> None:
        self.host, self.notifier = host, Notifier()
        self._loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(_WORKERS, "minichat-submit")
        self._callers = ThreadPoolExecutor(4, "minichat-call")  # for snapshots, not behind a long prompt
        self._reader = ThreadPoolExecutor(1, "minichat-read")  # two would only share the interpreter
        self._to_abort: list[int] = []
        self._snapshot: asyncio.Future[Snapshot] | None = None
        self._snapshot_json: asyncio.Future[bytes] | None = None
        self._cached: dict[int, int] = {}
        self._unsubscribe = host.subscribe(self._note)

    async def send(self, command: Command[T]) -> T:
        """Raises what the engine refuses."""
        return await asyncio.wrap_future(self.host.send(command))

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int,
        salt: bytes,
        reply_prefix: Sequence[int],
    ) -> Stream:
        """A new request. If its sender is gone by then, the request ends as it begins."""
        work = self._loop.run_in_executor(
            self._workers,
            lambda: self.host.submit(prompt, params, priority=priority, salt=salt, reply_prefix=reply_prefix),
        )
        try:
            stream = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._unwanted)
            raise
        return await self._begun(stream)

    async def fork(self, id: int, params: SamplingParams) -> Stream:
        """The same for a request that goes on from a running one."""
        return await self._begun(self.host.fork(id, params))

    async def _begun(self, stream: Stream) -> Stream:
        try:
            await asyncio.wrap_future(stream.begun)
        except asyncio.CancelledError:
            self._drop(stream)
            raise
        return stream

    def _unwanted(self, work: "asyncio.Future[Stream]") -> None:
        if not work.cancelled() and work.exception() is None:
            self._drop(work.result())

    def _drop(self, stream: Stream) -> None:
        """Ends a request that has lost its reader, as soon as the engine has taken it."""

        def end(begun: Future[Begun]) -> None:
            if begun.exception() is None:
                call_on(self._loop, self.abort, [begun.result().id])

        stream.begun.add_done_callback(end)

    def cached_tokens(self, request: int) -> int:
        """Of its prompt; known once, after its first delta."""
        return self._cached.pop(request, 0)

    def abort(self, requests: Iterable[int]) -> None:
        """Ends them between the next two steps; whatever is aborted in one turn of the loop goes together."""
        if not self._to_abort:
            self._loop.call_soon(self._abort_all)
        self._to_abort += requests

    async def work(self, work: Callable[[], T]) -> T:
        """Something that may take a while; who looks at the engine does not wait behind it."""
        return await self._loop.run_in_executor(self._workers, work)

    async def read(self, work: Callable[[], T]) -> T:
        """What it takes to understand a long request; one after the other."""

        def read() -> T:
            gc.disable()  # each collection would walk over all that was read so far, while nobody else runs
            try:
                return work()
            finally:
                gc.enable()

        return await self._loop.run_in_executor(self._reader, read)

    async def snapshot(self) -> Snapshot:
        """All who ask while one is made get the same."""
        if self._snapshot is None or self._snapshot.done():
            self._snapshot = self._loop.run_in_executor(self._callers, self.host.snapshot)
        return await asyncio.shield(self._snapshot)

    async def snapshot_json(self) -> bytes:
        """A snapshot as JSON; of a large cache that is work of some milliseconds, so not on the loop."""
        if self._snapshot_json is None or self._snapshot_json.done():
            self._snapshot_json = self._loop.run_in_executor(
                self._callers, lambda: encoded(encode_snapshot(self.host.snapshot()))
            )
        return await asyncio.shield(self._snapshot_json)

    def close(self) -> None:
        self._unsubscribe()
        for pool in (self._workers, self._callers, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)

    def _note(self, event: Event) -> None:
        """On the engine's thread."""
        if type(event) is Admitted:
            self._cached[event.request] = event.cached
            if len(self._cached) > _CACHED:  # of a fork, or of one of several replies, nobody will ask
                self._cached.pop(next(iter(self._cached)), None)

    def _abort_all(self) -> None:
        ids, self._to_abort = self._to_abort, []
        self.host.send(Abort(tuple(ids))).add_done_callback(_complain)
        for id in ids:
            self._cached.pop(id, None)


def _complain(done: Future[None]) -> None:
    if (error := done.exception()) and not isinstance(error, EngineError):
        log.error("an abort failed", exc_info=error)
