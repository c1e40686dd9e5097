"""What a command is doing, on a terminal, while it has nothing to print."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TypeVar

from minichat.shell.streams import harmless

T = TypeVar("T")

ERASE = "\r\x1b[K"


def shown() -> bool:
    """Whether standard error is a terminal that can remove a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def doing(what: str = "") -> Iterator[Callable[[str], None]]:
    """Show what is done, in one line of standard error that is removed at the end. Yields what changes it."""

    said = False

    def say(what: str) -> None:
        nonlocal said
        if what and shown():
            said = True
            room = get_terminal_size().columns - len(" ...") - 1  # only one line is removed
            print(f"{ERASE}{harmless(what[:room], sys.stderr)} ...", end="", file=sys.stderr, flush=True)

    say(what)
    try:
        yield say
    finally:
        if said:
            print(ERASE, end="", file=sys.stderr, flush=True)


@contextmanager
def doing_late(what: str, *, after: float = 1.0) -> Iterator[None]:
    """Show what is done if it takes over `after` seconds."""
    with doing() as say:
        late = threading.Timer(after, say, (what,))
        late.daemon = True
        late.start()
        try:
            yield
        finally:
            late.cancel()
            late.join()


def waiting(
    items: Iterable[T], what: str, arrived: Callable[[T], object], *, after: float = 1.0
) -> Iterator[T]:
    """Pass on items. Until one has arrived, show what is waited for, if that takes over `after` seconds."""
    rest = iter(items)
    with doing_late(what, after=after):
        for item in rest:
            if arrived(item):
                break
            yield item
        else:
            return
    yield item
    yield from rest
