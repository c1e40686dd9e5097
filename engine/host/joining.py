"""A connection between two machines of one program. Both ends prove that they have the same secret.

The secret itself is never sent. What follows is not encrypted.
"""

import hmac
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from engine.api.errors import EngineError

_BYTES = 32  # of the secret, of a nonce and of a proof
PROVES_WITHIN = 2.0  # seconds that a caller has, since others wait for it
_LOOK_EVERY = 0.2  # seconds
_SILENT = 10  # seconds without an answer from a machine after which it counts as lost


class WrongSecret(EngineError):
    """The other end has another secret, or none."""


class Door:
    """Listens for one caller that has the secret. Others are turned away."""

    def __init__(self, host: str, port: int = 0, secret: bytes = b"") -> None:
        """By default at any free port, with a new secret."""
        self.secret = secret or secrets.token_bytes(_BYTES)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise EngineError(f"cannot listen at {host}:{port}: {error.strerror}") from None
        self._socket.settimeout(_LOOK_EVERY)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def accept(self, within: float, look: Callable[[], None] = lambda: None) -> socket.socket:
        """Wait for the caller. `look` is called again and again, and may raise to give up."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            look()
            with suppress(TimeoutError):
                caller, _ = self._socket.accept()
                if _admitted(caller, self.secret):
                    return caller
                caller.close()
        raise EngineError(f"no connection has arrived within {within:g} s")

    def close(self) -> None:
        self._socket.close()


def join(address: tuple[str, int], secret: bytes) -> socket.socket:
    """Connect to a door, and prove to each other that both have the secret."""
    connection = socket.create_connection(address, timeout=_SILENT)
    try:
        theirs, ours = _received(connection), secrets.token_bytes(_BYTES)
        connection.sendall(ours + _proof(secret, b"caller", theirs, ours))
        try:
            proof = _received(connection)
        except ConnectionError:
            raise WrongSecret(f"{address[0]}:{address[1]} does not accept the secret") from None
        if not hmac.compare_digest(proof, _proof(secret, b"door", theirs, ours)):
            raise WrongSecret(f"{address[0]}:{address[1]} does not have the secret")
    except BaseException:
        connection.close()
        raise
    return _lasting(connection)


def _admitted(caller: socket.socket, secret: bytes) -> bool:
    caller.settimeout(PROVES_WITHIN)
    ours = secrets.token_bytes(_BYTES)
    try:
        caller.sendall(ours)
        theirs, proof = _received(caller), _received(caller)
        if not hmac.compare_digest(proof, _proof(secret, b"caller", ours, theirs)):
            return False
        caller.sendall(_proof(secret, b"door", ours, theirs))
    except OSError:
        return False
    _lasting(caller)
    return True


def _proof(secret: bytes, end: bytes, doors: bytes, callers: bytes) -> bytes:
    """Of one end only, so that it cannot be sent back as the other's."""
    return hmac.digest(secret, end + doors + callers, "sha256")


def _received(connection: socket.socket) -> bytes:
    until, found = time.monotonic() + (connection.gettimeout() or 0.0), b""
    while len(found) < _BYTES:
        if time.monotonic() > until:  # each byte may be slow
            raise TimeoutError("the other end is too slow")
        part = connection.recv(_BYTES - len(found))
        if not part:
            raise ConnectionError("the other end has closed the connection")
        found += part
    return found


def _lasting(connection: socket.socket) -> socket.socket:
    """Send at once, and notice within seconds that the other machine is gone."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT // 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT // 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return connection
