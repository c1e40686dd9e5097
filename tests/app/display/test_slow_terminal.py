"""A terminal that takes output slowly: the screen waits for it, and quitting does not."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from minichat.shell.output import Output
from tests.waiting import becomes

FRAME = "x" * 20_000
RESTORE = "\x1b[?1049l"


class Link:
    """A pseudo terminal of which the reader takes a few bytes at a time."""

    def __init__(self, bytes_per_second: int) -> None:
        self.ours, theirs = os.openpty()
        self.file = os.fdopen(theirs, "w")
        self.arrived = b""
        self._pause = 100 / bytes_per_second
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.output = Output(self.file)
        self.output.start()

    def _read(self) -> None:
        while not self.arrived.endswith(RESTORE.encode()):
            self.arrived += os.read(self.ours, 100)
            time.sleep(self._pause)

    def close(self) -> None:
        self._reader.join(5)
        assert not self._reader.is_alive()
        self.file.close()
        os.close(self.ours)


@pytest.fixture
def slow() -> Iterator[Link]:
    link = Link(10_000)
    yield link
    link.close()


@pytest.fixture
def fast() -> Iterator[Link]:
    link = Link(100_000_000)
    yield link
    link.close()


def test_quitting_drops_what_a_slow_terminal_has_not_taken(slow: Link) -> None:
    """30 frames, and the rest of the one that is being written: a minute of this link."""
    for _ in range(25):
        slow.output.write(FRAME)
    began = time.monotonic()
    slow.output.drop()
    slow.output.write(RESTORE)
    slow.output.stop()
    assert time.monotonic() - began < 2
    assert becomes(lambda: slow.arrived.endswith(b"\x18\x1b\\" + RESTORE.encode()))
    assert len(slow.arrived) < 10_000


def test_a_terminal_that_keeps_up_gets_everything(fast: Link) -> None:
    for _ in range(5):
        fast.output.write(FRAME)
    fast.output.drop()
    fast.output.write(RESTORE)
    fast.output.stop()
    assert becomes(lambda: fast.arrived == 5 * FRAME.encode() + RESTORE.encode())


def test_output_is_behind_until_the_terminal_has_taken_it(slow: Link, fast: Link) -> None:
    slow.output.write(FRAME)
    fast.output.write(FRAME)
    assert becomes(lambda: not fast.output.behind)
    assert slow.output.behind
    for link in slow, fast:
        link.output.drop()
        link.output.write(RESTORE)
        link.output.stop()
