"""All requests of the engine: their phase, progress, and why they wait."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message

from engine.api.snapshot import RequestView, Snapshot
from engine.api.speculation import Speculation
from minichat.ui.monitor.bindings import MAXIMIZE, down, up
from minichat.ui.monitor.figures import brief, number, request_name
from minichat.ui.monitor.owners import Owner
from minichat.ui.monitor.pane import Line, Pane, Row, Signs, clip
from minichat.ui.panes.keybar import Hints, HintsChanged

_SEEN = 4  # updates that a change of phase stays marked
_LOOKS = {"decode": "good", "prefill": "second", "waiting": "muted", "preempted": "warn", "swapped": "warn"}
_HEAD = 5  # cells of the mark and the letter
_BROAD = 55  # cells from which more columns fit
_ID, _DONE, _CACHE = 4, 10, 6  # cells of columns


class Column(NamedTuple):
    """One property of a request. Numbers are aligned right."""

    title: str
    width: int
    text: Callable[[RequestView], str]
    right: bool = False


def _done(request: RequestView) -> str:
    """Progress through the prompt during prefill, then through the reply."""
    if request.phase == "prefill" or not request.generated:
        now, end = min(request.launched, request.prompt), request.prompt
    else:
        now, end = request.generated, request.max_len - request.prompt
    whole = f"{now}/{end}"
    return whole if len(whole) <= _DONE else f"{brief(now)}/{brief(end)}"


def _draft(stats: Speculation | None) -> str:
    """The acceptance rate of drafted tokens, and the speedup once it is known."""
    if stats is None:
        return ""
    if not stats.on:
        return "paused"
    if not stats.verifications:
        return "starting"
    return f"{stats.acceptance:.0%} {number(stats.gain, '.1f')}x" if stats.gain else f"{stats.acceptance:.0%}"


def _cached(tokens: int) -> str:
    return f"{tokens}" if len(f"{tokens}") <= _CACHE else brief(tokens)


_COLUMNS = (
    Column("id", _ID, lambda request: request_name(request.id), right=True),
    Column("phase", 9, lambda request: request.phase),
    Column("done", _DONE, _done, right=True),
    Column("blk", 4, lambda request: brief(len(request.blocks) or len(request.host_blocks)), right=True),
)
_DRAFT = Column("draft", 9, lambda request: _draft(request.speculation), right=True)
_CACHED = Column("cached", _CACHE, lambda request: _cached(request.cached_tokens), right=True)


class Queues(Pane):
    """One line per request; one of them is selected."""

    number, title = 2, "queues"
    BINDINGS: ClassVar[list[BindingType]] = [
        up("select(-1)"),
        down("select(1)"),
        Binding("pageup", "select(-10)", show=False),
        Binding("pagedown", "select(10)", show=False),
        Binding("home", "select(-100000)", show=False),
        Binding("end", "select(100000)", show=False),
    ]

    class RequestAction(Message):
        """An action on one request."""

        def __init__(self, request: int) -> None:
            super().__init__()
            self.request = request

    class AbortRequested(RequestAction):
        """Abort the request."""

    class PreemptRequested(RequestAction):
        """Preempt the request; it resumes later."""

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(ascii=ascii, id=id)
        self._selected: int | None = None  # a request id
        self._place = 0  # its position in the list
        self._top = 0
        self._phases: dict[int, tuple[str, int]] = {}  # phase, and updates left to mark its change
        self._most = 0  # most requests so far: keeps the panes from moving with each request
        self._hinted: Hints = ()

    @property
    def hints(self) -> Hints:
        """The keys that work on the selected request."""
        requests = self.snapshot.requests if self.snapshot is not None else ()
        if not requests:
            return super().hints
        preempts = (("monitor.preempt", "preempt"),) if self.selected_runs else ()
        keys = ("monitor.up monitor.down", "select"), ("monitor.abort", "abort"), *preempts
        return (*keys, MAXIMIZE, ("Esc", "back"))

    @property
    def selected(self) -> int | None:
        return self._selected if self.snapshot is not None else None

    @property
    def selected_runs(self) -> bool:
        """Whether the selected request runs: another one has nothing to give up."""
        requests = self.snapshot.requests if self.snapshot is not None else ()
        return bool(requests) and requests[self._place].phase in ("prefill", "decode")

    @property
    def useful_lines(self) -> int:
        return 2 + self._most

    def update_from(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        self._most = max(self._most, len(snapshot.requests))
        before, self._phases = self._phases, {}
        for request in snapshot.requests:
            phase, left = before.get(request.id, ("", 0))
            self._phases[request.id] = (request.phase, max(0, left - 1) if phase == request.phase else _SEEN)
        ids = [request.id for request in snapshot.requests]
        if self._selected in ids:
            self._place = ids.index(self._selected)
        else:
            self._place = min(self._place, max(0, len(ids) - 1))
            self._selected = ids[self._place] if ids else None
        super().update_from(snapshot, owners)
        self._tell_hints()

    def _tell_hints(self) -> None:
        if self.hints != self._hinted:
            self._hinted = self.hints
            self.post_message(HintsChanged())

    def rows(self, width: int, height: int) -> Sequence[Line]:
        if (shot := self.snapshot) is None:
            return super().rows(width, height)
        requests = shot.requests
        room = max(1, height - 2)
        self._top = max(min(self._top, self._place, len(requests) - room), self._place - room + 1, 0)
        shown = requests[self._top : self._top + room]
        hidden = shot.queued + shot.running - len(shown)
        facts = (f"{shot.running:,} running", f"{shot.queued:,} waiting")
        rows = [self.heading(*facts, right=f"{hidden:,} more" if hidden > 0 else "")]
        if not requests:
            return [*rows, ((" no requests", "muted"),)]
        drafts = any(request.speculation for request in requests)
        names = max(len(request_name(request.id)) for request in shown)
        columns = columns_of(width - _HEAD, drafts=drafts, names=names)
        titles = "   " + " ".join(fitted(column, column.title, self.signs) for column in columns)
        return [*rows, ((f"  {titles}", "muted"),), *(self._request(request, columns) for request in shown)]

    def _request(self, request: RequestView, columns: Sequence[Column]) -> Row:
        owner = self.owner_of(request.id)
        selected = request.id == self._selected
        changed = self._phases.get(request.id, ("", 0))[1] > 0
        base = " selected" if selected and self.has_focus else ""
        mark = self.signs.pointer if selected else "*" if changed else " "
        shown = request._replace(why=request.why or owner.role)
        words = [fitted(column, column.text(shown), self.signs) for column in columns]
        look = _LOOKS.get(request.phase, "value") + (" strong" if changed else "")
        return (
            (f"{mark} ", f"strong{base}"),
            (f"{owner.letter:<2} ", f"owner:{owner.index}{base}"),
            (f"{words[0]} ", f"muted{base}"),
            (f"{words[1]} ", look + base),
            (" ".join(words[2:]), f"value{base}"),
        )

    # Actions

    def action_select(self, by: int) -> None:
        if self.snapshot and self.snapshot.requests:
            self._place = min(max(self._place + by, 0), len(self.snapshot.requests) - 1)
            self._selected = self.snapshot.requests[self._place].id
            self.draw()
            self._tell_hints()

    def abort_selected(self) -> bool:
        """Return whether there was one."""
        return self.selected is not None and self.post_message(self.AbortRequested(self.selected))

    def preempt_selected(self) -> bool:
        """Return whether there was one."""
        return self.selected is not None and self.post_message(self.PreemptRequested(self.selected))

    def on_click(self, event: Click) -> None:
        self.action_select(self._top + event.y - 2 - self._place if event.y >= 2 else 0)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_select(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_select(-1)


def columns_of(width: int, *, drafts: bool = False, names: int = _ID) -> list[Column]:
    """Return the columns that fit; "why" gets the remaining width. `drafts`: a request uses speculation.
    `names`: cells of the longest request name, which is never cut: that of another request may begin alike.
    """
    more = [*([_DRAFT] if drafts else []), *([_CACHED] if width >= _BROAD else [])]
    columns = [_COLUMNS[0]._replace(width=max(_ID, names)), *_COLUMNS[1:], *more]
    used = sum(column.width + 1 for column in columns)
    return [*columns, Column("why", max(0, width - used), lambda request: request.why)]


def fitted(column: Column, text: str, signs: Signs) -> str:
    line = signs.line(text)
    return clip(line.rjust(column.width) if column.right else line, column.width, signs.cut)
