"""What is said of a request, a column a property."""

from collections.abc import Callable
from typing import NamedTuple

from engine.api.snapshot import RequestView, Speculation
from minichat.ui.monitor.pane import Signs, clip

_BROAD = 55  # cells from which there is room for more


class Column(NamedTuple):
    """One property of a request; numbers stand at the right."""

    title: str
    width: int
    says: Callable[[RequestView], str]
    right: bool = False


def _done(request: RequestView) -> str:
    """Of the prompt until it is read, then of the reply."""
    if request.phase == "prefill" or not request.generated:
        return f"{min(request.launched, request.prompt)}/{request.prompt}"
    return f"{request.generated}/{request.max_len - request.prompt}"


def _guesses(told: Speculation | None) -> str:
    """How many stand, and how many times as fast that makes it."""
    if told is None:
        return ""
    if not told.on:
        return "rests"
    return f"{told.acceptance:.0%} {told.gain:.1f}x" if told.gain else "begins"


_COLUMNS = (
    Column("id", 4, lambda request: f"{request.id}", right=True),
    Column("phase", 9, lambda request: request.phase),
    Column("done", 10, _done, right=True),
    Column("blk", 4, lambda request: f"{len(request.blocks) or len(request.host_blocks)}", right=True),
)
_GUESSES = Column("guesses", 9, lambda request: _guesses(request.speculation), right=True)
_CACHED = Column("cached", 6, lambda request: f"{request.cached_tokens}", right=True)


def columns_of(width: int, *, guesses: bool = False) -> list[Column]:
    """Those that fit; why it waits gets the rest. `guesses`: somebody guesses ahead."""
    more = [*([_GUESSES] if guesses else []), *([_CACHED] if width >= _BROAD else [])]
    columns = [*_COLUMNS, *more]
    used = sum(column.width + 1 for column in columns)
    return [*columns, Column("why", max(0, width - used), lambda request: request.why)]


def fitted(column: Column, text: str, signs: Signs) -> str:
    line = signs.line(text)
    return clip(line.rjust(column.width) if column.right else line, column.width, signs.cut)
