"""Draws lines of the transcript as strips: cached ones, or new ones if something is highlighted."""

from collections.abc import Callable
from typing import NamedTuple

from textual.geometry import Offset
from textual.selection import Selection
from textual.strip import Strip

from minichat.ui.transcript.finding import Find
from minichat.ui.transcript.highlights import HIGHLIGHT_KINDS, Highlights
from minichat.ui.transcript.markdown import highlight
from minichat.ui.transcript.markdown.cells import clip
from minichat.ui.transcript.markdown.leaves import Leaf
from minichat.ui.transcript.markdown.rows import Fragment, RenderedLeaf, Row
from minichat.ui.transcript.marks import marked
from minichat.ui.transcript.view import Place, View


class PaintContext(NamedTuple):
    """What all lines of one rendering share."""

    top: int
    last: int
    notice: str
    selection: Selection | None


class Painter:
    """Draws the visible lines."""

    def __init__(self, view: View, missing: Callable[[str], None]) -> None:
        self._view = view
        self._missing = missing  # called for a language whose lexer is not loaded yet
        self._canvas = view.canvas
        self.find: Find | None = None
        self.current: tuple[int, int] | None = None  # the leaf key of the current hit, and its index there
        self.highlights = {kind: Highlights(view, kind) for kind in HIGHLIGHT_KINDS}

    def row(self, place: Place) -> tuple[Row, RenderedLeaf]:
        drawn = place.entry.drawn(place.spot)
        return drawn.rows[min(place.spot.row, len(drawn.rows) - 1)] if drawn.rows else Row(), drawn

    def leaf(self, place: Place) -> Leaf | None:
        document = place.entry.document(place.spot.part)
        return document.leaves[place.spot.leaf] if document is not None and document.leaves else None

    def strip(self, y: int, selection: Selection | None) -> Strip:
        """Draw line y."""
        if y >= self._view.total:
            return self._canvas.paint(Row())
        place = self._view.place(y)
        picked = [
            (start, end, each.look)
            for each in self.highlights.values()
            if each.spans
            for start, end in each.ranges(place)
        ]
        if self.find is None and selection is None and not picked:
            document = place.entry.document(place.spot.part)
            if document is not None and document.leaves:
                sheet = document.sheet(place.spot.leaf)
                if place.spot.row < len(sheet.drawn.rows):
                    if sheet.leaf.kind == "code" and not highlight.known(sheet.leaf.info):
                        self._missing(sheet.leaf.info)
                    return self._canvas.strip(sheet, place.spot.row)
        row, drawn = self.row(place)
        if self.find is not None:
            for index, (start, end) in enumerate(self.find.ranges(place.entry, drawn)):
                here = self.current == (place.key, index)
                row = marked(row, start, end, "current" if here else "found")
        for start, end, look in picked:
            row = marked(row, start, end, look)
        if selection is not None and (span := _span(selection, place.key, len(drawn.plain))):
            row = marked(row, *span, "selected")
        return self._canvas.paint(row)

    def placed(self, y: int) -> Strip:
        """Draw line y with the offsets of its characters, for the mouse."""
        if y >= self._view.total:
            y = self._view.total - 1
        place = self._view.place(y)
        return self._canvas.paint_placed(self.row(place)[0], place.key)

    def notice(self, text: str) -> Strip:
        """Draw the notice that covers the last visible line."""
        width, glyphs = self._canvas.width, self._canvas.glyphs
        text = clip(f" {text} ", width, glyphs.cut)
        blank = Fragment(" " * max(0, width - len(text)))
        return self._canvas.paint(Row((blank, Fragment(text, ("marked",)))))


def _span(selection: Selection, key: int, length: int) -> tuple[int, int] | None:
    start, end = selection.start or Offset(0, -1), selection.end
    if key < start.y or (end is not None and key > end.y):
        return None
    low = start.x if key == start.y else 0
    high = end.x if end is not None and key == end.y else length
    return (low, high) if low < high else None
