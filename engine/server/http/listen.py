"""uvicorn around the application: sockets that are ours before anything is loaded, and an orderly end."""

import asyncio
import logging
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from engine.api.commands import Abort
from engine.api.errors import BadInput, EngineError
from engine.host.protocol import EngineHost
from engine.server.app import application
from engine.server.config import ServerConfig
from engine.server.drain import Drain
from engine.server.http.protocol import GuardedProtocol, PatientWebSocket

log = logging.getLogger("minichat.server")

_LAST_WORDS = 3.0  # seconds for replies that were aborted to tell their clients
_BACKLOG = 2048


def tcp_socket(host: str, port: int) -> socket.socket:
    """Taken at once, so that a port in use is known before a model is loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)  # bound alone, two servers that start together would both believe it theirs
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"cannot listen on {host} port {port}: {error}; --host and --port name others"
        ) from None
    return bound


def unix_socket(path: Path) -> socket.socket:
    """Only its owner may connect, from the first moment on."""
    with _private():
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.exists() or path.is_symlink():
                _remove_dead(path)
            bound.bind(str(path))
            bound.listen(_BACKLOG)  # so that a second server sees that somebody is here, while a model loads
        except OSError as error:
            bound.close()
            raise BadInput(f"cannot listen on {path}: {error}") from None
    return bound


@contextmanager
def _private() -> Generator[None, None, None]:
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _remove_dead(path: Path) -> None:
    """A socket that a server left behind may go; anything else stays."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise BadInput(f"{path} is there, and no socket; --uds names another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise BadInput(f"another server listens on {path}; --uds names another")


class Server(uvicorn.Server):
    """Ends in order: nothing new, what runs may finish for a while. A second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, drain: Drain, seconds: float, host: EngineHost) -> None:
        super().__init__(config)
        self._drain, self._seconds, self._host = drain, seconds, host
        self.leave_nothing: Callable[[], None] = lambda: None  # the last thing before an end at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain.begin()
        late = asyncio.get_running_loop().call_later(self._seconds, self._abort_all)
        await super().shutdown(sockets)
        late.cancel()

    def end(self) -> None:
        """From any thread."""
        self.should_exit = True

    def _abort_all(self) -> None:
        """Their time is over: each client is told so by the finish reason."""
        log.warning("replies still run after %g s and are aborted", self._seconds)
        threading.Thread(target=self._abort, name="minichat-abort", daemon=True).start()

    def _abort(self) -> None:
        with suppress(EngineError):  # it has ended meanwhile
            while requests := self._host.snapshot().requests:  # of a long line it shows only the head
                self._host.send(Abort(tuple([request.id for request in requests]))).result()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn would raise the signal again at the end, and nobody could close the engine."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.leave_nothing()
            os._exit(128 + number)
        self.should_exit = True


def server(
    host: EngineHost,
    config: ServerConfig,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    access_log: bool = False,
) -> Server:
    """Ready to run on its sockets."""
    drain = Drain()
    options: dict[str, Any] = {
        "http": GuardedProtocol,
        "ws": PatientWebSocket,
        "ws_max_size": config.max_body,
        "ws_per_message_deflate": False,  # tokens are small, and the processor is the engine's
        "lifespan": "on",
        "log_config": None,
        "access_log": access_log,
        "server_header": False,
        "proxy_headers": False,
        "backlog": _BACKLOG,
        "timeout_keep_alive": 60,
        "timeout_graceful_shutdown": int(config.drain + _LAST_WORDS) + 1,
        "ssl_certfile": certificate,
        "ssl_keyfile": key,
    }
    uvicorn_config = uvicorn.Config(application(host, config, drain), **options)
    return Server(uvicorn_config, drain, config.drain, host)
