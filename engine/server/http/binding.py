"""The server's sockets, bound before a model is loaded."""

import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from engine.api.errors import BadInput

BACKLOG = 2048


def tcp_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. A port in use fails here, before a model is loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)  # with bind alone, two servers starting together would both succeed
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        ways = "choose others with --host and --port"
        raise BadInput(f"cannot listen on {host} port {port}: {why}; {ways}") from None
    return bound


def unix_socket(path: Path) -> socket.socket:
    """Return a listening Unix socket. It is created with permissions for its owner alone."""
    with _private():
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.exists() or path.is_symlink():
                _remove_dead(path)
            bound.bind(str(path))
            bound.listen(BACKLOG)  # a second server sees that this one is running, even while a model loads
        except OSError as error:
            bound.close()
            raise BadInput(f"cannot listen on {path}: {error.strerror or error}") from None
    return bound


@contextmanager
def _private() -> Generator[None, None, None]:
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _remove_dead(path: Path) -> None:
    """Remove a socket left behind by a dead server. Refuse to touch anything else."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise BadInput(f"{path} exists and is not a socket; choose another path with --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise BadInput(f"another server is listening on {path}; choose another path with --uds")
