"""JSON values over a socket between two processes of the same program. A frame is a length, then the text."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_LENGTH = 4  # bytes
_MOST = 2**31


class FrameSocket:
    """Both ends of the talk. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._incoming = connection.makefile("rb", buffering=1 << 16)
        self._sending = threading.Lock()

    def send(self, value: Any) -> None:
        """Returns when the system has taken it; raises OSError where nobody listens any more."""
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        if len(text) >= _MOST:
            raise ValueError(f"a frame of {len(text)} bytes is too long")
        with self._sending:
            self._connection.sendall(len(text).to_bytes(_LENGTH, "little") + text)

    def __iter__(self) -> Iterator[Any]:
        """What comes, until the other end is gone, however it went."""
        while (text := self._receive()) is not None:
            yield json.loads(text)

    def _receive(self) -> bytes | None:
        try:
            length = self._incoming.read(_LENGTH)
            if len(length) < _LENGTH:
                return None
            size = int.from_bytes(length, "little")
            text = self._incoming.read(size)
        except ConnectionError:
            return None
        return text if len(text) == size else None

    def end(self) -> None:
        """Whoever waits for a frame, here or there, sees the end."""
        with suppress(OSError):  # the other side was quicker
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """For the one who receives, when nothing comes any more."""
        self._incoming.close()
        self._connection.close()
