"""A disk that holds its reads and writes back for as long as it likes, below Python and SQLite.

The kernel asks another process before each call, as seccomp's notifications can. This needs no privileges.
"""

import array
import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CALLS = {  # pread64, pwrite64, preadv, pwritev, preadv2, pwritev2, fsync, fdatasync
    "x86_64": (17, 18, 295, 296, 327, 328, 74, 75),
    "aarch64": (67, 68, 69, 70, 286, 287, 82, 83),
}
SECCOMP = {"x86_64": 317, "aarch64": 277}
ASKS, ALLOWED = 0x7FC00000, 0x7FFF0000  # what the filter returns
NO_NEW_PRIVILEGES, LISTENS = 38, 8
RECEIVE, ANSWER = 0xC0502100, 0xC0182101
NOTICE = struct.Struct("<QII iIQ 6Q")  # id, thread, flags; call, machine, where, arguments
GO_ON = 1


class Held:
    """In the program whose calls are held."""

    def __init__(self, link: socket.socket) -> None:
        """From now on, this thread and those it starts ask first. Raises OSError if the kernel cannot."""
        self._link = link
        listener = array.array("i", [_listen()])
        link.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, listener)])
        os.close(listener[0])

    @contextmanager
    def held(self) -> Iterator[None]:
        """No call returns inside the block."""
        self._say(b"h")
        try:
            yield
        finally:
            self._say(b"g")

    def _say(self, word: bytes) -> None:
        self._link.sendall(word)
        assert self._link.recv(1), "the other process has ended"


def serve(link: socket.socket, folder: Path) -> None:
    """In the other process: hold calls on files in `folder` while the program asks for it, to its end."""
    _, rights, *_ = link.recvmsg(1, socket.CMSG_SPACE(4))
    if not rights:
        return  # it has ended
    (listener,) = array.array("i", rights[0][2])
    on, held = False, list[int]()
    try:
        while True:
            ready, *_ = select.select([link, listener], [], [])
            if link in ready:
                if not (word := link.recv(1)):
                    return
                on = word == b"h"
                held = held if on else [_answer(listener, id) for id in held][:0]
                link.sendall(b".")
            elif (notice := _received(listener)) is not None:
                id, thread, *_, number = notice[:7]
                if on and _inside(thread, number, folder):
                    held.append(id)
                else:
                    _answer(listener, id)
    finally:
        os.close(listener)


def _listen() -> int:
    """Install the filter. Returns the descriptor of its listener."""
    calls = CALLS[platform.machine()]
    code = [(0x20, 0, 0, 0)]  # the call's number
    code += [
        (0x15, len(calls) - at, 0, each) for at, each in enumerate(calls)
    ]  # one of them: to the last line
    code += [(0x06, 0, 0, ALLOWED), (0x06, 0, 0, ASKS)]
    lines = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in code))
    program = struct.pack("@HP", len(code), ctypes.addressof(lines))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    found = libc.syscall(SECCOMP[platform.machine()], 1, LISTENS, program)
    if found < 0:
        raise OSError(ctypes.get_errno(), "no seccomp notifications here")
    return int(found)


def _received(listener: int) -> tuple[int, ...] | None:
    room = bytearray(NOTICE.size)
    try:
        fcntl.ioctl(listener, RECEIVE, room)
    except OSError:  # the thread that asked was killed
        return None
    return NOTICE.unpack(room)


def _answer(listener: int, id: int) -> None:
    try:
        fcntl.ioctl(listener, ANSWER, struct.pack("<QqiI", id, 0, 0, GO_ON))
    except FileNotFoundError:  # the same
        return


def _inside(thread: int, descriptor: int, folder: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{thread}/fd/{descriptor}")).is_relative_to(folder)
    except OSError:
        return False
