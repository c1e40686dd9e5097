"""The columns of the queues."""

from collections.abc import Callable
from typing import NamedTuple

from engine.api.snapshot import RequestView, Speculation
from minichat.ui.monitor.figures import request_name
from minichat.ui.monitor.pane import Signs, clip

_BROAD = 55  # cells from which more columns fit


class Column(NamedTuple):
    """One property of a request. Numbers are aligned right."""

    title: str
    width: int
    text: Callable[[RequestView], str]
    right: bool = False


def _done(request: RequestView) -> str:
    """Progress through the prompt during prefill, then through the reply."""
    if request.phase == "prefill" or not request.generated:
        return f"{min(request.launched, request.prompt)}/{request.prompt}"
    return f"{request.generated}/{request.max_len - request.prompt}"


def _draft(stats: Speculation | None) -> str:
    """The acceptance rate of drafted tokens, and the speedup."""
    if stats is None:
        return ""
    if not stats.on:
        return "off"
    return f"{stats.acceptance:.0%} {stats.gain:.1f}x" if stats.gain else "starting"


_COLUMNS = (
    Column("id", 4, lambda request: request_name(request.id), right=True),
    Column("phase", 9, lambda request: request.phase),
    Column("done", 10, _done, right=True),
    Column("blk", 4, lambda request: f"{len(request.blocks) or len(request.host_blocks)}", right=True),
)
_DRAFT = Column("draft", 9, lambda request: _draft(request.speculation), right=True)
_CACHED = Column("cached", 6, lambda request: f"{request.cached_tokens}", right=True)


def columns_of(width: int, *, drafts: bool = False) -> list[Column]:
    """Return the columns that fit; "why" gets the remaining width. `drafts`: a request uses speculation."""
    more = [*([_DRAFT] if drafts else []), *([_CACHED] if width >= _BROAD else [])]
    columns = [*_COLUMNS, *more]
    used = sum(column.width + 1 for column in columns)
    return [*columns, Column("why", max(0, width - used), lambda request: request.why)]


def fitted(column: Column, text: str, signs: Signs) -> str:
    line = signs.line(text)
    return clip(line.rjust(column.width) if column.right else line, column.width, signs.cut)
