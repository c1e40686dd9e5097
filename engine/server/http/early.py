"""The application of a server from its first moment: /health is answered while all else is imported."""

import asyncio
from typing import TYPE_CHECKING, Any

from engine.server.config import ServerConfig
from engine.server.drain import Drain
from engine.server.http.request_ids import identified
from engine.server.http.turns import Turns
from engine.server.startup import Startup, asks_health, report_start

if TYPE_CHECKING:
    from fastapi import FastAPI

_OF_STARTUP = "lifespan.startup."
_STARTED = {"type": _OF_STARTUP + "complete"}


class EarlyApplication:
    """Builds the application on a thread, and passes requests on to it. Before, it answers /health."""

    def __init__(self, startup: Startup, config: ServerConfig, drain: Drain) -> None:
        self._startup, self._config, self._drain = startup, config, drain
        self._turns = Turns()
        self._serving: asyncio.Future[FastAPI] | None = None  # done once the application's own start is

    @property
    def built(self) -> "FastAPI":
        assert self._serving is not None
        return self._serving.result()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self._answers(scope):
            await report_start(self._startup, identified(scope, send))
        else:
            assert self._serving is not None
            app = self.built if self._serving.done() else await asyncio.shield(self._serving)
            await self._turns.begin()
            await app(scope, receive, send)

    def _answers(self, scope: Any) -> bool:
        """Whether this is for /health, and nothing else can answer. A page of another site waits, as the
        application knows the headers that its browser needs.
        """
        if not asks_health(scope) or (self._serving is not None and self._serving.done()):
            return False
        return not self._config.origins or all(name != b"origin" for name, _ in scope["headers"])

    async def _live(self, scope: Any, receive: Any, send: Any) -> None:
        """Tell the server at once that it may serve, unless the engine is ready anyway."""
        self._serving = serving = asyncio.get_running_loop().create_future()
        message, early = await receive(), self._startup.ready is None
        if early:
            await send(_STARTED)
        try:
            app = await asyncio.to_thread(self._build)
        except BaseException as error:
            self._startup.opened.set_exception(error)
            serving.set_exception(error)
            raise

        async def receive_again() -> Any:
            nonlocal message
            first, message = message, None
            return first or await receive()

        async def send_others(sent: Any) -> None:
            if sent == _STARTED:
                serving.set_result(app)
            if not early or not sent["type"].startswith(_OF_STARTUP):
                await send(sent)

        try:
            await app(scope, receive_again, send_others)
        except BaseException as error:
            if not serving.done():
                serving.set_exception(error)  # for the requests that wait
            raise

    def _build(self) -> "FastAPI":
        from engine.server.app import application

        return application(self._startup, self._config, self._drain)
