"""JSON values between the engine and one rank, with a limit on every wait."""

import json
import socket
from typing import Any

from engine.distributed.waiting import readable

REFUSED = 65  # the exit code of a rank that cannot start; it has sent the reason
_LENGTH = 4  # bytes
_MOST = 2**24


class RankLink:
    """One end of a socket pair. One thread sends and receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def send(self, value: Any) -> None:
        text = json.dumps(value, separators=(",", ":")).encode()
        self._connection.sendall(len(text).to_bytes(_LENGTH, "little") + text)

    def receive(self, seconds: float | None = None) -> Any:
        """Return the next value; None if there is none after `seconds`. Raises EOFError at the end."""
        while (value := self._next()) is None:
            if not readable(self._connection.fileno(), seconds):
                return None
            try:
                data = self._connection.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the other end has closed")
            self._received += data
        return value

    def _next(self) -> Any:
        have = self._received
        size = int.from_bytes(have[:_LENGTH], "little")
        if len(have) < _LENGTH or len(have) < _LENGTH + size:
            if size > _MOST:
                raise EOFError(f"the other end announces {size} bytes")
            return None
        value = json.loads(have[_LENGTH : _LENGTH + size])
        del have[: _LENGTH + size]
        return value

    def close(self) -> None:
        self._connection.close()
