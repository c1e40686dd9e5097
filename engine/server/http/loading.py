"""Requests that arrive while the engine starts wait for it, once they have shown their key."""

import asyncio
from collections.abc import Callable
from typing import Any

from engine.api.errors import Ending, EngineDead, EngineError
from engine.host.client import EngineClient
from engine.server.drain import Drain
from engine.server.http.auth import App, refuse
from engine.server.http.errors import from_engine
from engine.server.startup import Startup, asks_health, report_start


class Opening:
    """Waits for the engine, and lets requests in."""

    def __init__(self, startup: Startup, drain: Drain, open: Callable[[EngineClient], None]) -> None:
        """`open`: called on the event loop with the engine, before the first request."""
        self._startup, self._drain, self._open = startup, drain, open
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        task = self._task
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    async def begin(self) -> None:
        """Start waiting. If the engine is ready, open at once."""
        self._task = asyncio.create_task(self._run())
        if self._startup.ready is not None:
            await self._task

    def reports(self, scope: Any) -> bool:
        """Whether a request asks how far the start is."""
        return not self.is_open and asks_health(scope)

    async def report(self, send: Any) -> None:
        await report_start(self._startup, send)

    async def wait(self) -> None:
        """Return when requests may continue. Raises the reason if they cannot."""
        assert self._task is not None
        await asyncio.shield(self._task)

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        starting = asyncio.wrap_future(self._startup.host)
        ending = asyncio.create_task(self._drain.wait())
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not starting.done():
            raise Ending("the server is shutting down")
        if error := starting.exception():
            raise EngineDead(f"the engine did not start: {error}")
        try:
            self._open(starting.result())
        except BaseException as error:
            self._startup.opened.set_exception(error)
            raise
        self._startup.opened.set_result(None)


class LoadingMiddleware:
    """The innermost middleware: requests that wait here have a valid key."""

    def __init__(self, app: App, opening: Opening) -> None:
        self._app, self._opening = app, opening

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._opening.reports(scope):
            await self._opening.report(send)
            return
        if scope["type"] != "lifespan" and not self._opening.is_open:
            try:
                await self._opening.wait()
            except EngineError as error:
                await refuse(from_engine(error), scope, send)
                return
        await self._app(scope, receive, send)
