"""JSON values over a socket between two processes of this program. A frame is a length and the JSON text."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from engine.api.errors import BadWire

_LENGTH = 4  # bytes
_MOST = 2**31
_written = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class FrameSocket:
    """One end of the connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._incoming = connection.makefile("rb", buffering=1 << 16)
        self._sending = threading.Lock()

    def send(self, value: Any) -> None:
        """Send a value. Returns when the kernel has it; raises OSError if the other end is closed."""
        text = _written(value).encode()
        if len(text) >= _MOST:
            raise ValueError(f"a frame must be shorter than {_MOST} bytes, got {len(text)}")
        with self._sending:
            self._connection.sendall(len(text).to_bytes(_LENGTH, "little") + text)

    def __iter__(self) -> Iterator[Any]:
        """Yield values until the other end closes or dies."""
        while (text := self._receive()) is not None:
            yield json.loads(text)

    def _receive(self) -> bytes | None:
        try:
            length = self._incoming.read(_LENGTH)
            if len(length) < _LENGTH:
                return None
            size = int.from_bytes(length, "little")
            if size >= _MOST:
                raise BadWire(f"a frame must be shorter than {_MOST} bytes, got {size}")
            text = self._incoming.read(size)
        except ConnectionError:
            return None
        return text if len(text) == size else None

    def end(self) -> None:
        """Shut the connection down. Both ends stop waiting for frames."""
        with suppress(OSError):  # the other end may have closed it already
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket. Called by the receiving thread after the last frame."""
        self._incoming.close()
        self._connection.close()
