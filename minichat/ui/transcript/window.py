"""The visible lines of the column: the end while it is followed, else where the user scrolled to."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.timer import Timer
from textual.widget import Widget

from minichat.ui.transcript.entry import Entry, EntryPart
from minichat.ui.transcript.markdown.document import Enough
from minichat.ui.transcript.marks import ends, row_of
from minichat.ui.transcript.view import Place, View

_SLICE = 0.006  # seconds per slice of deferred work
_STEPS = 8  # a growing reply scrolls by this fraction of the height at once
PAUSE = 0.01  # seconds between slices, for key presses


def budget() -> Enough:
    """Return a function that reports when a slice of work should end."""
    end = time.perf_counter() + _SLICE
    return lambda: time.perf_counter() >= end


class Viewport:
    """Measures what comes into view, and keeps it in place while heights around it are measured."""

    def __init__(self, widget: ScrollView, view: View) -> None:
        self._widget = widget
        self._view = view
        self.following = True
        self.placing = False  # the program is scrolling, not the user
        self.revealed = False  # the program has shown a line, and the user has not scrolled since
        self._left_at = 0  # the column's height when the user left the end
        self._shown = 0  # the column's height at the last update
        self._reading: Timer | None = None

    @property
    def top(self) -> int:
        return round(self._widget.scroll_y)

    @property
    def width(self) -> int:
        return self._widget.scrollable_content_region.width

    @property
    def height(self) -> int:
        return self._widget.size.height

    @property
    def unseen(self) -> int:
        """The number of lines added since the user left the end."""
        return 0 if self.following else max(0, self._view.total - self._left_at)

    @property
    def notice(self) -> str:
        """The notice of unseen lines while the end is not in view."""
        lines, canvas = f"{self.unseen:,} new line{'s' * (self.unseen != 1)}", self._view.canvas
        way = ", End to follow" if canvas.unfolds else ""  # else End is for another chat, too
        return f"-- {canvas.glyphs.below} {lines}{way} --" if self.unseen else ""

    @property
    def busy(self) -> bool:
        """Whether text is still being read in slices."""
        return self._reading is not None

    def arrange(self, changed: int) -> None:
        """Update the view and the scroll bar after lines from `changed` on have changed."""
        top, height, before = self.top, self.height, self._shown
        if not height:
            return
        if self.following:
            self._view.measure_end(height, budget())
        else:
            self._measure(top, top + height)
        self._resize_column()
        if self.following:
            self._jump(self._widget.max_scroll_y)
        self._shown = self._view.total
        first, last = max(0, changed - top), min(height, max(before, self._shown) - top)
        if self.top == top and first < last:
            self._widget.refresh(Region(0, first, self.width, last - first))
        elif self.unseen:
            self._widget.refresh(Region(0, height - 1, self.width, 1))
        self._keep_reading()

    def stay(self, y: int) -> None:
        """Keep the line at y at the top while its surroundings are measured."""
        if self.following or not self._view.entries:
            self.arrange(0)
            return
        place = self._view.place(y)
        self._measure(y, y + self.height)
        self._resize_column()
        self._jump(self._view.line(place))
        self._widget.refresh()
        self._keep_reading()

    def lower(self, lines: int) -> None:
        """Move the view down by the lines inserted above it."""
        self._left_at += lines
        self.stay(self.top + lines)

    def leave(self) -> None:
        """Stop following the end."""
        if self.following:
            self.following, self._left_at = False, self._view.total

    def fold(self, entry: Entry) -> None:
        """Show or hide a message's reasoning without moving its fold line."""
        entry.open(budget())
        y = self._view.top(entry) + entry.part_top(EntryPart.FOLD)
        if self.top <= y:
            self.leave()
        with self.not_new(y):
            entry.toggle()
            self._view.changed(entry)
        self.stay(self.top)

    def reveal(self, place: Place) -> None:
        """Scroll a line near the middle if it is not in view."""
        self.revealed = True
        if self.top <= self._view.line(place) < self.top + self.height - 1:
            return
        self._measure_around(place, self.height, self.height)
        self._go(self._view.line(place) - self.height // 2)

    def read(self, entry: Entry) -> bool:
        """Read a slice of a message. Return whether all of it has been read."""
        entry.open(budget())
        done = entry.catch_up(budget())
        self._view.changed(entry)
        return done

    def begin_at(self, place: Place) -> None:
        """Scroll a line to the top."""
        self._measure_around(place, 0, self.height)
        self._go(self._view.line(place))

    def _go(self, y: int) -> None:
        self.leave()
        self._jump(max(0, min(y, self._widget.max_scroll_y)))
        self.following = self.top >= self._widget.max_scroll_y
        self.stay(self.top)

    def _measure_around(self, place: Place, above: int, below: int) -> None:
        """Measure the lines around this one until its position is stable."""
        line = -1
        while line != self._view.line(place):
            line = self._view.line(place)
            self._measure(line - above, line + below)
        self._resize_column()

    def _measure(self, top: int, bottom: int) -> None:
        with self.not_new(bottom):
            self._view.measure(top, bottom, budget())

    @contextmanager
    def not_new(self, bottom: int) -> Iterator[None]:
        """Heights above `bottom` are corrected, or folded: lines that the user has left are not new."""
        before, seen = self._view.total, bottom <= self._left_at
        yield
        if seen:
            self._left_at += self._view.total - before

    def scrolled(self, y: int) -> None:
        """Update after the user has scrolled."""
        self.revealed = False
        if y >= self._widget.max_scroll_y:
            self.following = True
        else:
            self.leave()
        self.stay(y)

    def prepare(self, y: float) -> int:
        """Measure what will come into view above. Return how many lines that moves everything down."""
        top = self.top
        if not top - 2 * self.height <= y < top:
            return 0
        place = self._view.place(top)
        self._measure_around(place, top - round(y), 0)
        moved = self._view.line(place) - top
        if moved:
            self._jump(top + moved)
        return moved

    def resized(self) -> None:
        """Adapt to a new width. The text at the top stays there."""
        width, filled = self.width, self._widget.size.width
        if not width:
            return
        if not self._view.entries or width == self._view.canvas.width:
            self._view.canvas.resize(width, filled)
            self.stay(self.top)
            return
        place, unseen = self._view.place(self.top), self.unseen
        rows = place.entry.drawn(place.spot).rows
        seen = ends(rows[place.spot.row]) if place.spot.row < len(rows) else None
        self._view.resize(width, filled)
        if seen:
            row = row_of(place.entry.drawn(place.spot), seen[0])
            place = place._replace(spot=place.spot._replace(row=row))
            self._view.measure(self._view.line(place), self._view.line(place) + 1)
        self._left_at = self._view.total - unseen  # other line breaks add no text
        self.stay(self._view.line(place))

    def _resize_column(self) -> None:
        """Update the scroll bar. Setting virtual_size would lay out the whole screen for each new line."""
        widget, size = self._widget, Size(self.width, self._view.total + self._spare)
        if widget.virtual_size != size:
            widget.set_reactive(Widget.virtual_size, size)
            if widget.show_vertical_scrollbar:
                widget.vertical_scrollbar.window_virtual_size = size.height
                widget.vertical_scrollbar.window_size = self.height

    @property
    def _spare(self) -> int:
        """Empty lines after a streaming reply, so that the view scrolls by several lines at once."""
        step = max(1, self.height // _STEPS)
        over = self._view.total - self.height
        return -over % step if over > 0 and self._view.streaming else 0

    def _jump(self, y: int) -> None:
        self.placing = True
        self._widget.scroll_target_y = self._widget.scroll_y = y
        self.placing = False

    # Parsing long text in slices

    def _keep_reading(self) -> None:
        if self._reading is None and self._unread():
            self._reading = self._widget.set_timer(PAUSE, self._read_on)

    def _unread(self) -> list[Entry]:
        seen = list(self._view.between(self.top, self.top + max(1, self.height)))
        return [entry for entry in {*seen, *self._view.entries[-1:]} if entry.behind]

    def _read_on(self) -> None:
        self._reading = None
        for entry in self._unread()[:1]:
            with self.not_new(self._view.top(entry) + entry.height):
                entry.catch_up(budget())
                self._view.changed(entry)
        self.stay(self.top)
