"""What a start does, on which thread, and for how long. A server's engine logs it once it is ready."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

STARTED = "a start: "  # and its spans, in the log of an engine that is ready
_MOST = 1000  # spans; an engine that has started adds some when it changes its cache


class Span(NamedTuple):
    thread: str
    what: str
    began: float  # on the monotonic clock
    ended: float
    busy: float  # seconds of processor time of this thread; the rest are waits, or work without it

    def joined(self, later: "Span") -> "Span":
        return self._replace(ended=later.ended, busy=self.busy + later.busy)


spans: list[Span] = []  # of this process, in the order of their ends
others: list[Span] = []  # of other processes of this machine, whose clock is the same


class Stopwatch:
    """Notes how long something takes. Begin and end it on the same thread."""

    def __init__(self, what: str) -> None:
        self._what, self._began, self._before = what, time.monotonic(), time.thread_time()

    def end(self) -> None:
        if len(spans) < _MOST:
            thread, busy = threading.current_thread().name, time.thread_time() - self._before
            spans.append(Span(thread, self._what, self._began, time.monotonic(), busy))


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Note how long this block takes, also if it fails."""
    watch = Stopwatch(what)
    try:
        yield
    finally:
        watch.end()


def merged(found: Sequence[Span]) -> list[Span]:
    """Join those of a thread that are the same and follow each other. In the order in which they began."""
    last: dict[str, int] = {}  # of each thread, the place of its last span
    joined: list[Span] = []
    for each in sorted(found, key=lambda span: span.began):
        at = last.get(each.thread)
        if at is not None and joined[at].what == each.what and joined[at].ended <= each.began:
            joined[at] = joined[at].joined(each)
        else:
            last[each.thread] = len(joined)
            joined.append(each)
    return joined


def add_others(text: str, source: str) -> None:
    """Note the spans of another process."""
    found = [each._replace(thread=f"{source}: {each.thread}") for each in from_text(text)]
    others.extend(found[: max(0, _MOST - len(others))])


def every() -> list[Span]:
    """All spans."""
    return merged([*spans, *others])


def as_text(own: bool = False) -> str:
    """All spans, for a log, or only those of this process."""
    found = merged(spans) if own else every()
    return json.dumps([[*each[:2], *(round(seconds, 4) for seconds in each[2:])] for each in found])


def from_text(text: str) -> list[Span]:
    return [Span(*each) for each in json.loads(text)]
