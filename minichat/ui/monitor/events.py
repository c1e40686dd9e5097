"""The engine's event log."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import MouseScrollDown, MouseScrollUp
from textual.widgets import Input

from engine.api.events import Event, Quantizing, RequestEvent
from engine.api.snapshot import Snapshot
from minichat.ui.monitor.bindings import MAXIMIZE, down, up
from minichat.ui.monitor.figures import clock_time, request_name
from minichat.ui.monitor.owners import Owner
from minichat.ui.monitor.pane import Pane, Row, Span, clip
from minichat.ui.monitor.words import described, look
from minichat.ui.panes.keybar import Hints, HintsChanged

_KEPT = 2000
_OFF = 5.0  # seconds that two clocks may differ: a snapshot can be late
_LATE = 60.0  # seconds that no snapshot is late: the link would have been given up
_KIND = 9  # cells of the longest kind


class EventLine(NamedTuple):
    """One line of the log, made when the event arrives."""

    clock: str
    request: int  # -1: none
    kind: str
    words: str
    owner: Owner | None = None  # known for good: its engine is gone


class EventFilter(Input):
    """What the shown events match."""

    HINTS: ClassVar[Hints] = (("Enter", "keep the filter"), ("Esc", "all events"))


class EventLog(Pane):
    """Shows the newest event at the end, and follows the end until the user scrolls up."""

    DEFAULT_CSS = """
    EventLog > EventFilter, EventLog > EventFilter:focus {
        dock: bottom;
        display: none;
        height: 1;
        border: none;
        padding: 0 1;
        background: $panel;
    }
    """
    number, title = 5, "events"
    HINTS = (
        ("monitor.up monitor.down", "scroll"),
        ("monitor.filter", "filter"),
        MAXIMIZE,
        ("Esc", "back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        up("scroll_by(1)"),
        down("scroll_by(-1)"),
        Binding("pageup", "scroll_by(10)", show=False),
        Binding("pagedown", "scroll_by(-10)", show=False),
        Binding("home", "scroll_by(100000)", show=False),
        Binding("end", "scroll_by(-100000)", show=False),
        Binding("escape", "clear", show=False),
    ]

    def __init__(
        self, *, ascii: bool = False, id: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(ascii=ascii, id=id)
        self.pattern = ""
        self.clock = clock
        self._ahead: float | None = None  # from the engine's clock to the local one
        self._later: float | None = None  # what the last snapshot said, if that was much more
        self._entries: deque[EventLine] = deque(maxlen=_KEPT)
        self._fresh: deque[EventLine] = deque(maxlen=_KEPT)  # not filtered yet
        self._shown: deque[EventLine] = deque(maxlen=_KEPT)  # those that match the filter
        self._back = 0  # lines scrolled up from the end
        self._woken = False
        self._finder = EventFilter(placeholder="chat letter or text", compact=True)
        self._finder.cursor_blink = False

    @property
    def hints(self) -> Hints:
        return (*super().hints[:-1], ("Esc", "all events")) if self.pattern else super().hints

    def compose(self) -> ComposeResult:
        yield self._finder

    def add(self, event: Event) -> None:
        if isinstance(event, Quantizing):  # one per layer: F4 shows the count
            return
        if self._ahead is None:
            self._ahead = self.clock() - event.at
        at = clock_time(event.at + self._ahead)
        kind, words = described(event)
        request = event.request if isinstance(event, RequestEvent) else -1
        entry = EventLine(at, request, kind, self.signs.line(words))
        self._entries.append(entry)
        self._fresh.append(entry)
        if self.is_attached and not self._woken and not self.paused:
            self._woken = True
            self.call_later(self._draw_new)

    def remember(self, snapshot: Snapshot) -> None:
        """Follow the engine's clock, which stands while its machine sleeps, and restarts with it.

        A single snapshot may have been on its way for a while.
        """
        if snapshot.state != "ready" or self._ahead is None:
            return
        ahead, before, self._later = self.clock() - snapshot.at, self._later, None
        if ahead < self._ahead - _OFF or ahead > self._ahead + _LATE:
            self._ahead = ahead
        elif ahead > self._ahead + _OFF:
            self._later, self._ahead = (ahead, self._ahead) if before is None else (None, min(before, ahead))

    def keep_owners(self, owners: Mapping[int, Owner]) -> None:
        """Keep the owners of all events so far: a new engine counts requests from the start."""
        for entries in (self._entries, self._fresh, self._shown):
            kept = [each._replace(owner=each.owner or owners.get(each.request)) for each in entries]
            entries.clear()
            entries += kept

    def _draw_new(self) -> None:
        self._woken = False
        self.draw()

    @property
    def useful_lines(self) -> int:
        return 1 + max(len(self._entries), 1)

    def rows(self, width: int, height: int) -> Sequence[Row]:
        if not self.paused:
            self._take_in()
        room = max(1, height - 1 - self._finder.display)
        self._back = max(0, min(self._back, len(self._shown) - room))
        self.tell_scrolling(len(self._shown) > room)
        last = len(self._shown) - self._back
        shown = [self._shown[place] for place in range(max(0, last - room), last)]
        known = f"{len(self._entries) - len(self._fresh):,}"
        count = f"{len(self._shown):,} of {known}" if self.pattern else known
        facts = (count, f"matching {self.pattern!r}" if self.pattern else "")
        right = f"{self.signs.below} {self._back:,} more, End to follow" if self._back else ""
        if not shown:
            before = self.snapshot is not None and self.snapshot.finished > 0
            none = "no events since this screen began" if before else "no events yet"
            empty = "no matches" if self.pattern else none
            return [self.heading(*facts), ((f" {empty}", "muted"),)]
        return [self.heading(*facts, right=right), *(self._line(entry, width) for entry in shown)]

    def _line(self, entry: EventLine, width: int) -> Row:
        owner = self._owner(entry)
        spans: list[Span] = [(f" {entry.clock} ", "muted")]
        spans.append((f"{owner.letter if entry.request >= 0 else '':<2}", f"owner:{owner.index}"))
        if width >= 56:
            spans.append((f"{_number(entry):>4} ", "muted"))
        spans.append((f" {entry.kind:<{_KIND}} ", look(entry.kind)))
        used = sum(len(text) for text, _ in spans)
        spans.append((clip(self._words(entry), max(0, width - used), self.signs.cut), "muted"))
        return tuple(spans)

    def _owner(self, entry: EventLine) -> Owner:
        return entry.owner or self.owner_of(entry.request)

    def _words(self, entry: EventLine) -> str:
        role = self._owner(entry).role
        return f"{role}: {entry.words}" if role else entry.words

    def _take_in(self) -> None:
        while self._fresh:
            entry = self._fresh.popleft()
            if self._matches(entry):
                self._shown.append(entry)
                self._back += self._back > 0

    def _matches(self, entry: EventLine) -> bool:
        """A term of one or two letters is a chat's letter; longer terms match anywhere in the line."""
        letter = self._owner(entry).letter.lower()
        also = "preempted" if entry.kind == "swapped" else ""  # as the queue's key and the totals call it
        line = f"{_number(entry)} {entry.kind} {also} {self._words(entry)}".lower()
        return all(
            term == letter or ((len(term) > 2 or term.isdigit()) and term in line)
            for term in self.pattern.lower().split()
        )

    # Actions

    def filter(self) -> None:
        """Open the filter's input field."""
        self._finder.display = True
        self._finder.focus()
        self.draw()

    def action_scroll_by(self, lines: int) -> None:
        self._back = max(0, self._back + lines)
        self.draw()

    def action_clear(self) -> None:
        if not self.pattern and not self._finder.display:
            raise SkipAction
        self._finder.value = ""
        self._close_finder()

    def _close_finder(self) -> None:
        self._finder.display = False
        self.focus()
        self.post_message(HintsChanged())
        self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.pattern = event.value.strip()
        if not self.paused:
            self._fresh.clear()
        known = islice(self._entries, len(self._entries) - len(self._fresh))
        self._shown = deque(filter(self._matches, known), maxlen=_KEPT)
        self._back = 0
        self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._close_finder()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_scroll_by(3)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_scroll_by(-3)


def _number(entry: EventLine) -> str:
    return request_name(entry.request) if entry.request >= 0 else ""
