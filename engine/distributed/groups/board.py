"""Notes that all ranks of an engine see: where they find each other, and when they must stop.

Every process has a board. That of rank 0 is connected to all others, and passes their notes on.
"""

import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from torch._C._distributed_c10d import Store

from engine.distributed.groups.process_group import LOOPBACK
from engine.distributed.link import RankLink


class Board:
    def __init__(self, connections: Sequence[socket.socket], host: str = LOOPBACK) -> None:
        """`connections`: of rank 0 to all others, of others to rank 0. `host`: where it is reached."""
        self.host = host
        self._sockets = {each.fileno(): each for each in connections}
        self._links = {fd: RankLink(each) for fd, each in self._sockets.items()}
        self._notes: dict[str, bytes] = {}
        self._changed, self._sending = threading.Condition(), threading.Lock()
        self._watchers: list[Callable[[str], None]] = []
        self._reading = threading.Thread(target=self._read, name="board", daemon=True)
        self._reading.start()

    def post(self, key: str, note: bytes) -> None:
        """Post a note, from any thread."""
        self._take(key, note, None)

    def has(self, key: str) -> bool:
        with self._changed:
            return key in self._notes

    def read(self, key: str, seconds: float, given_up: Callable[[], bool] = lambda: False) -> bytes:
        """Wait for a note. Raises TimeoutError if there is none in time, or if it is given up."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._notes or given_up(), seconds)
            if key not in self._notes:
                raise TimeoutError(f"no rank has posted {key}")
            return self._notes[key]

    def watch(self, call: Callable[[str], None]) -> None:
        """Call this with the key of each note, on the thread that posts or receives it. It must not wait."""
        self._watchers.append(call)

    def close(self) -> None:
        for each in self._sockets.values():
            with suppress(OSError):  # the other end may have closed it
                each.shutdown(socket.SHUT_RDWR)
        self._reading.join()
        for each in self._sockets.values():
            each.close()

    def _take(self, key: str, note: bytes, source: int | None) -> None:
        with self._changed:
            self._notes[key] = note
            self._changed.notify_all()
        for call in self._watchers:
            call(key)
        with self._sending:
            for fd, link in self._links.items():
                if fd != source:
                    with suppress(OSError):  # a rank that is lost is reported by its heartbeat
                        link.send([key, note.hex()])

    def _read(self) -> None:
        poll, left = select.poll(), set(self._links)
        for fd in left:
            poll.register(fd, select.POLLIN)
        while left:
            for fd, _ in poll.poll():
                try:
                    while (found := self._links[fd].receive(0.0)) is not None:
                        key, note = found
                        self._take(str(key), bytes.fromhex(note), fd)
                except (EOFError, OSError, ValueError, TypeError):
                    poll.unregister(fd)
                    left.discard(fd)


class BoardStore(Store):
    """What torch.distributed needs of a store, on a board."""

    def __init__(self, board: Board, name: str, limit: float, given_up: Callable[[], bool]) -> None:
        """`name`: of the group, first in all of its keys. `limit`: seconds that it waits for a note."""
        super().__init__()
        self._board, self._name, self._limit, self._given_up = board, name, limit, given_up

    def set(self, key: str, value: str | bytes) -> None:
        self._board.post(self._name + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._board.read(self._name + key, self._limit, self._given_up)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        return all(self._board.has(self._name + key) for key in keys)
