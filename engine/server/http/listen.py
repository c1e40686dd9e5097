"""uvicorn around the application, with a graceful shutdown."""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from engine.api.errors import EngineError
from engine.server.config import ServerConfig
from engine.server.drain import Drain
from engine.server.http.binding import BACKLOG
from engine.server.http.early import EarlyApplication
from engine.server.http.protocol import GuardedProtocol, LenientWebSocket
from engine.server.startup import Startup

if TYPE_CHECKING:  # it imports numpy, and /health is answered before that is there
    from engine.host.client import EngineClient

log = logging.getLogger("minichat.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ABORTED_WITHIN = 3.0  # seconds for aborted replies to send their last event


class Server(uvicorn.Server):
    """A server with graceful shutdown: running replies may finish. A second signal exits at once."""

    def __init__(self, config: uvicorn.Config, drain: Drain, seconds: float, startup: Startup) -> None:
        super().__init__(config)
        self._drain, self._seconds, self._startup = drain, seconds, startup
        self.leave_nothing: Callable[[], None] = lambda: None  # cleanup before exiting at once
        self.keeps_signals = False  # takes them back from a library that replaces their handlers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain.begin()
        late = asyncio.get_running_loop().call_later(self._seconds, self._abort_all)
        await super().shutdown(sockets)
        late.cancel()

    def end(self) -> None:
        """Begin shutdown. Safe from any thread."""
        self.should_exit = True

    def _abort_all(self) -> None:
        """Abort replies that outlast the grace period. Their clients get the finish reason "abort"."""
        log.warning("aborting replies that are still running after %g s", self._seconds)
        threading.Thread(target=self._abort, name="minichat-abort", daemon=True).start()

    def _abort(self) -> None:
        if (host := self._startup.ready) is None:
            return
        from engine.api.commands import Abort

        with suppress(EngineError):  # the engine may have ended
            while requests := host.snapshot().requests:  # it lists only the head of a long queue
                host.send(Abort(tuple([request.id for request in requests]))).result()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals without raising them again at exit, as uvicorn would: the engine must be closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._take_signals()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        if self.keeps_signals and threading.current_thread() is threading.main_thread():
            self._take_signals()  # Python does not know of a handler in C
        return await super().on_tick(counter)

    def _take_signals(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.leave_nothing()
            os._exit(128 + number)
        self.should_exit = True
        with suppress(RuntimeError):  # nothing is served yet
            # Tell those who watch: a second signal may come before uvicorn looks at `should_exit`.
            asyncio.get_running_loop().call_soon_threadsafe(self._begin, number)

    def _begin(self, number: int) -> None:
        """Begin shutdown after a signal, and say what it waits for."""
        self._drain.begin()
        if self._seconds and (running := self._drain.running()):
            again = "press Ctrl+C again" if number == signal.SIGINT else "send another signal"
            requests = f"{running} running request{'s' * (running != 1)}"
            log.warning("waiting up to %g s for %s; %s to stop at once", self._seconds, requests, again)


def server(
    host: "EngineClient | Startup",
    config: ServerConfig,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    password: str = "",
    access_log: bool = False,
) -> Server:
    """Return a server, ready to run on its sockets. `host`: an engine, or the start of one."""
    drain = Drain()
    startup = host if isinstance(host, Startup) else Startup.finished(host)
    options: dict[str, Any] = {
        "http": GuardedProtocol,
        "ws": LenientWebSocket,
        "ws_max_size": config.max_body,
        "ws_per_message_deflate": False,  # messages are small, and the engine needs the CPU
        "lifespan": "on",
        "log_config": None,
        "access_log": access_log,
        "server_header": False,
        "proxy_headers": False,
        "backlog": BACKLOG,
        "timeout_keep_alive": 60,
        "timeout_graceful_shutdown": int(config.drain + _ABORTED_WITHIN) + 1,
        "ssl_certfile": certificate,
        "ssl_keyfile": key,
        "ssl_keyfile_password": password or None,
    }
    uvicorn_config = uvicorn.Config(EarlyApplication(startup, config, drain), **options)
    return Server(uvicorn_config, drain, config.drain, startup)
