"""What a command is doing, on a terminal, while it has nothing to print."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size

from minichat.shell.streams import harmless

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
