"""The connections of a rank on another machine: four sockets, each opened with the secret."""

import os
import socket
import time
from contextlib import suppress
from typing import NamedTuple

from engine.api.errors import EngineError
from engine.host.joining import PROVES_WITHIN, Door, join

_TOKEN = 16  # random bytes that the sockets of one rank have in common


class RankChannels(NamedTuple):
    link: socket.socket
    pulse: socket.socket
    board: socket.socket
    steps: socket.socket

    @property
    def host(self) -> str:
        """Where the other end is."""
        return str(self.link.getpeername()[0])

    @property
    def own_host(self) -> str:
        """Where the other end reaches this one."""
        return str(self.link.getsockname()[0])

    def end(self) -> None:
        """Both ends stop waiting. From any thread."""
        for each in self:
            with suppress(OSError):  # the other end may have closed it
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        for each in self:
            each.close()


def open_channels(address: tuple[str, int], secret: bytes) -> RankChannels:
    """Connect to an engine as one of its ranks."""
    token, opened = os.urandom(_TOKEN), list[socket.socket]()
    try:
        for number in range(len(RankChannels._fields)):
            opened.append(join(address, secret))
            opened[-1].sendall(token + bytes([number]))
    except BaseException:
        for each in opened:
            each.close()
        raise
    return RankChannels(*opened)


def accept_channels(door: Door, ranks: int, within: float) -> list[RankChannels]:
    """Wait for this many ranks, in the order in which they connect."""
    until, parts, whole = (
        time.monotonic() + within,
        dict[bytes, dict[int, socket.socket]](),
        list[RankChannels](),
    )
    try:
        while len(whole) < ranks:
            caller = door.accept(until - time.monotonic())
            if (head := _head(caller)) is None:
                caller.close()
                continue
            token, number = head
            found = parts.setdefault(token, {})
            found[number] = caller
            if len(found) == len(RankChannels._fields):
                whole.append(RankChannels(*(found[each] for each in sorted(found))))
                del parts[token]
    except BaseException as error:
        for channels in whole:
            channels.close()
        if isinstance(error, EngineError):
            raise EngineError(
                f"{len(whole)} of {ranks} other ranks have connected within {within:g} s"
            ) from None
        raise
    finally:
        for each in (each for found in parts.values() for each in found.values()):
            each.close()
    return whole


def _head(caller: socket.socket) -> tuple[bytes, int] | None:
    caller.settimeout(PROVES_WITHIN)
    try:
        data = caller.recv(_TOKEN + 1, socket.MSG_WAITALL)
    except OSError:
        return None
    caller.settimeout(None)
    if len(data) <= _TOKEN or data[_TOKEN] >= len(RankChannels._fields):
        return None
    return data[:_TOKEN], data[_TOKEN]
