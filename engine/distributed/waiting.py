"""Waits for a file descriptor. `select.select` would fail for numbers over 1,023."""

import select


def readable(fd: int, seconds: float | None = None) -> bool:
    """Whether there is something to read, or the end, after at most `seconds`; None: no limit."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1e3))
