"""The start of a server's engine, as /health reports it until the engine is ready."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from engine.server.config import HEALTH

if TYPE_CHECKING:  # it imports numpy, and the engine's process is started first
    from engine.host.client import EngineClient


class Startup:
    """How far the start is, and what comes of it. Any thread may report."""

    def __init__(self, shown: Callable[[int, int], None] = lambda done, total: None) -> None:
        """`shown`: also gets the progress."""
        self._shown = shown
        self.host: Future[EngineClient] = Future()  # the engine, or why it did not start
        self.opened: Future[None] = Future()  # done when requests reach the engine
        self._began, self._doing, self._share = time.monotonic(), "starting", 0.0

    @classmethod
    def finished(cls, host: "EngineClient") -> Self:
        """The start of an engine that is ready."""
        startup = cls()
        startup.host.set_result(host)
        return startup

    def phase(self, doing: str) -> None:
        self._doing, self._share = doing, 0.0

    def progress(self, done: int, total: int) -> None:
        """Report bytes read or downloaded, and bytes in all."""
        self._share = done / total if total else 0.0
        self._shown(done, total)

    @property
    def ready(self) -> "EngineClient | None":
        """The engine once it is ready."""
        done = self.host.done() and not self.host.cancelled() and self.host.exception() is None
        return self.host.result() if done else None

    def record(self) -> dict[str, Any]:
        """Return what /health says."""
        record: dict[str, Any] = {"status": "loading", "doing": self._doing}
        if share := self._share:
            record["share"] = round(share, 2)
        return record | {"seconds": round(time.monotonic() - self._began, 1)}


def asks_health(scope: Any) -> bool:
    return scope["type"] == "http" and scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD")


async def report_start(startup: Startup, send: Any) -> None:
    """Answer /health while the engine starts."""
    body = json.dumps(startup.record()).encode()
    headers = {"content-type": "application/json", "retry-after": "1", "content-length": str(len(body))}
    coded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 503, "headers": coded})
    await send({"type": "http.response.body", "body": body})
