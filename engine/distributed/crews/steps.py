"""Steps to ranks on other machines: the messages of the ring, over a socket to each."""

import socket
from collections.abc import Sequence

from engine.distributed.ring import HEAD, RingMessage, read_head
from engine.distributed.waiting import readable


class StepSender:
    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._connections, self._number = connections, 0

    def send(self, kind: int, payload: bytes) -> int:
        """Send a message to all. Returns its number. Raises BrokenPipeError if a connection has ended."""
        number, self._number = self._number, self._number + 1
        data = HEAD.pack(number, kind, len(payload)) + payload
        try:
            for each in self._connections:
                each.sendall(data)
        except OSError as error:
            raise BrokenPipeError(f"a rank has closed its connection: {error}") from None
        return number


class StepReceiver:
    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._number = connection, 0

    def receive(self, seconds: float | None = None) -> RingMessage | None:
        """Return the next message; None if there is none after `seconds`. Raises EOFError at the end."""
        if not readable(self._connection.fileno(), seconds):
            return None
        kind, size = read_head(self._take(HEAD.size), self._number)
        self._number += 1
        return RingMessage(self._number - 1, kind, self._take(size))

    def _take(self, size: int) -> bytes:
        try:
            data = self._connection.recv(size, socket.MSG_WAITALL) if size else b""
        except ConnectionError:
            data = b""
        if len(data) < size:
            raise EOFError("the engine has ended")
        return data
