"""Selecting text with the keyboard."""

from typing import NamedTuple

from textual.geometry import Offset
from textual.selection import Selection

from minichat.ui.transcript.markdown.rows import Row
from minichat.ui.transcript.marks import column_of, ends, nearest, row_of
from minichat.ui.transcript.view import Place, View


class Line(NamedTuple):
    """A line of the transcript that has text."""

    y: int
    place: Place
    row: Row

    def at(self, character: int) -> Offset:
        return Offset(character, self.place.key)

    @property
    def start(self) -> Offset:
        return self.at((ends(self.row) or (0, 0))[0])

    @property
    def end(self) -> Offset:
        return self.at((ends(self.row) or (0, 0))[1])


class Caret:
    """The fixed end and the moving end of a selection."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._origin: Offset | None = None
        self._now: Offset | None = None

    def forget(self) -> None:
        self._origin = self._now = None

    def begin(self, top: int, bottom: int, up: bool) -> bool:
        """Start a selection at the edge of the view: the bottom when going up, the top when going down."""
        line = self._line_from(bottom - 1, -1) if up else self._line_from(top, 1)
        if self._now is None and line is not None:
            self._origin = self._now = line.end if up else line.start
            return True
        return False

    @property
    def selection(self) -> Selection | None:
        if self._origin is None or self._now is None:
            return None
        return Selection.from_offsets(self._origin, self._now)

    @property
    def y(self) -> int:
        """The line of the moving end."""
        line = self._line()
        return line.y if line else 0

    def lines(self, count: int) -> None:
        """Move by lines, keeping the column."""
        line, step = self._line(), 1 if count > 0 else -1
        if line is None or self._now is None:
            return
        column = 0 if self._now == line.start else column_of(line.row, self._now.x)
        for _ in range(abs(count)):
            further = self._line_from(line.y + step, step)
            if further is None:
                self._now = line.end if step > 0 else line.start
                return
            line = further
        self._now = line.at(nearest(line.row, column) or 0)

    def characters(self, step: int) -> None:
        """Move by one character, into the next leaf at the end of this one."""
        place = self._view.place_of(self._now.y) if self._now is not None else None
        if place is None or self._now is None:
            return
        drawn = place.entry.drawn(place.spot)
        if 0 <= self._now.x + step <= len(drawn.plain):
            self._now = Offset(self._now.x + step, self._now.y)
            return
        y = self._view.line(place)
        further = self._line_from(y + len(drawn.rows) if step > 0 else y - 1, step)
        if further is not None:
            self._now = further.start if step > 0 else further.end

    def edge(self, by: int) -> None:
        """Move to the start or the end of the line."""
        if line := self._line():
            self._now = line.end if by > 0 else line.start

    def _line(self) -> Line | None:
        place = self._view.place_of(self._now.y) if self._now is not None else None
        if place is None or self._now is None:
            return None
        drawn = place.entry.drawn(place.spot)
        index = row_of(drawn, self._now.x)
        place = place._replace(spot=place.spot._replace(row=index))
        return Line(self._view.line(place), place, drawn.rows[index])

    def _line_from(self, y: int, step: int) -> Line | None:
        """The first line with text from y on, in the direction of `step`."""
        y = min(y, self._view.total - 1) if step < 0 else y
        while 0 <= y < self._view.total:
            self._view.measure(y, y + 1)
            place = self._view.place(y)
            drawn = place.entry.drawn(place.spot)
            row = drawn.rows[place.spot.row]
            if drawn.plain and ends(row):
                return Line(y, place, row)
            y += step
        return None
