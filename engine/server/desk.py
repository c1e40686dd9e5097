"""The engine as the event loop sees it: nothing here blocks the loop."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from engine.errors import EngineError
from engine.events import Admitted, Event
from engine.host.prompts import Prompt
from engine.host.protocol import EngineHost
from engine.host.stream import Stream
from engine.params import SamplingParams
from engine.server.post import Post
from engine.server.sse import encoded
from engine.snapshot import Snapshot
from engine.wire import encode_snapshot

log = logging.getLogger("minichat.server")

T = TypeVar("T")
_SUBMITTERS = 32  # each waits for a step at most, and a step takes in all that wait
_CACHED = 8192  # requests whose cached tokens nobody has asked for yet


class Desk:
    """Hands requests in from threads, since an answer may take a step."""

    def __init__(self, host: EngineHost) -> None:
        self.host, self.post = host, Post()
        self._loop = asyncio.get_running_loop()
        self._submitters = ThreadPoolExecutor(_SUBMITTERS, "minichat-submit")  # and for templates and texts
        self._callers = ThreadPoolExecutor(4, "minichat-call")  # not behind those who wait with a prompt
        self._reader = ThreadPoolExecutor(1, "minichat-read")  # two would only share the interpreter
        self._doomed: list[int] = []
        self._shot: asyncio.Future[Snapshot] | None = None
        self._picture: asyncio.Future[bytes] | None = None
        self._cached: dict[int, int] = {}
        self._unsubscribe = host.subscribe(self._note)

    async def submit(
        self, prompt: Prompt, params: SamplingParams, *, priority: int, salt: bytes, said: Sequence[int]
    ) -> Stream:
        """A new request. Where nobody waits for the answer any more, the request ends as it begins."""
        return await self._begun(
            lambda: self.host.submit(prompt, params, priority=priority, salt=salt, said=said)
        )

    async def fork(self, id: int, params: SamplingParams) -> Stream:
        """The same for a request that goes on from a running one."""
        return await self._begun(lambda: self.host.fork(id, params))

    async def _begun(self, begin: Callable[[], Stream]) -> Stream:
        work = self._loop.run_in_executor(self._submitters, begin)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._unwanted)
            raise

    def cached_tokens(self, request: int) -> int:
        """Of its prompt; known once, after its first delta."""
        return self._cached.pop(request, 0)

    def abort(self, requests: Iterable[int]) -> None:
        """Ends them between the next two steps; whatever is aborted in one turn of the loop goes together."""
        if not self._doomed:
            self._loop.call_soon(self._end_doomed)
        self._doomed += requests

    async def call(self, work: Callable[[], T]) -> T:
        """Something short, that waits for the engine."""
        return await self._loop.run_in_executor(self._callers, work)

    async def work(self, work: Callable[[], T]) -> T:
        """Something that may take a while; who looks at the engine does not wait behind it."""
        return await self._loop.run_in_executor(self._submitters, work)

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
        if self._shot is None or self._shot.done():
            self._shot = self._loop.run_in_executor(self._callers, self.host.snapshot)
        return await asyncio.shield(self._shot)

    async def picture(self) -> bytes:
        """A snapshot as JSON; of a large cache that is work of some milliseconds, so not on the loop."""
        if self._picture is None or self._picture.done():
            self._picture = self._loop.run_in_executor(
                self._callers, lambda: encoded(encode_snapshot(self.host.snapshot()))
            )
        return await asyncio.shield(self._picture)

    def close(self) -> None:
        self._unsubscribe()
        for pool in (self._submitters, self._callers, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)

    def _note(self, event: Event) -> None:
        """On the engine's thread."""
        if type(event) is Admitted:
            self._cached[event.request] = event.cached
            if len(self._cached) > _CACHED:  # of a fork, or of one of several replies, nobody will ask
                self._cached.pop(next(iter(self._cached)), None)

    def _unwanted(self, work: "asyncio.Future[Stream]") -> None:
        if not work.cancelled() and work.exception() is None:
            self.abort([work.result().id])

    def _end_doomed(self) -> None:
        ids, self._doomed = self._doomed, []
        done = self._loop.run_in_executor(self._callers, lambda: self.host.abort(*ids))
        done.add_done_callback(_complain)
        for id in ids:
            self._cached.pop(id, None)


def _complain(done: "asyncio.Future[None]") -> None:
    if not done.cancelled() and (error := done.exception()) and not isinstance(error, EngineError):
        log.error("an abort failed", exc_info=error)
