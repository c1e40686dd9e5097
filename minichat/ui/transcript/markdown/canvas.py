"""Rows in the theme's colors, with a cache of recent ones."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from minichat.ui.transcript.glyphs import Glyphs
from minichat.ui.transcript.markdown.cells import cell_width
from minichat.ui.transcript.markdown.draw import draw
from minichat.ui.transcript.markdown.leaves import Leaf
from minichat.ui.transcript.markdown.rows import Fragment, Look, RenderedLeaf, Row

MAX_ROWS = 400  # cached rows: a few screens

Colored = Callable[[Look], Style]


@dataclass(slots=True)
class Sheet:
    """A drawn leaf with the strips of its rows that were shown."""

    leaf: Leaf
    tail: str
    growing: bool
    drawn: RenderedLeaf
    strips: dict[int, Strip] = field(default_factory=dict)


class Canvas:
    """Draws leaves at the current width. `color` returns a look's style in the current theme."""

    def __init__(self, width: int, glyphs: Glyphs, color: Colored) -> None:
        self.width = width
        self.filled = width  # including the scroll bar's column, which covers the rows
        self.glyphs = glyphs
        self.unfolded: set[int] = set()  # the messages whose reasoning is shown
        self.unfolds = "Enter"  # the key that shows and hides reasoning; empty: it is for another chat
        self.retries = "r to retry"  # what failed replies offer; empty: nothing
        self._color = color
        self._styles: dict[Look, Style] = {}
        self._sheets: OrderedDict[int, Sheet] = OrderedDict()
        self._rows = 0

    def resize(self, width: int, filled: int) -> None:
        self.width, self.filled = width, filled
        self.forget()

    def forget(self) -> None:
        """Clear the cache: the width, the theme or a lexer has changed."""
        self._styles.clear()
        self._sheets.clear()
        self._rows = 0

    def sheet(self, leaf: Leaf, base: Look, tail: str = "", growing: bool = False) -> Sheet:
        sheet = self._sheets.get(id(leaf))
        if sheet is not None and sheet.leaf is leaf and (sheet.tail, sheet.growing) == (tail, growing):
            self._sheets.move_to_end(id(leaf))
            return sheet
        if sheet is not None:
            self._rows -= len(sheet.drawn.rows)
        sheet = Sheet(leaf, tail, growing, draw(leaf, self.width, self.glyphs, base, tail, growing))
        self._sheets[id(leaf)] = sheet
        self._sheets.move_to_end(id(leaf))
        self._rows += len(sheet.drawn.rows)
        while self._rows > MAX_ROWS and len(self._sheets) > 1:
            self._rows -= len(self._sheets.popitem(last=False)[1].drawn.rows)
        return sheet

    def drop(self, leaf: Leaf) -> None:
        """Drop a leaf that is about to change from the cache."""
        sheet = self._sheets.pop(id(leaf), None)
        if sheet is not None:
            self._rows -= len(sheet.drawn.rows)

    def strip(self, sheet: Sheet, index: int) -> Strip:
        strip = sheet.strips.get(index)
        if strip is None:
            strip = sheet.strips[index] = self.paint(sheet.drawn.rows[index])
        return strip

    def paint(self, row: Row) -> Strip:
        """Draw a row in its colors, padded to the width."""
        segments, cells = [], 0
        for text, look, _ in filter(_shows, row.fragments):
            segments.append(Segment(self.glyphs.writable(text), self.style(look)))
            cells += cell_width(text)
        if cells < self.filled:
            segments.append(Segment(" " * (self.filled - cells), self.style(row.fill)))
            cells = self.filled
        return Strip(segments, cells)

    def paint_placed(self, row: Row, line: int) -> Strip:
        """Draw a row whose segments carry their text offsets, for the mouse.

        Decoration carries the offset of the text after it, one segment per cell: Textual adds the column.
        """
        placed: list[Segment] = []
        at = max(
            (fragment.at + len(fragment.text) for fragment in row.fragments if fragment.at >= 0), default=0
        )
        fragments = (*row.fragments, Fragment(" " * max(0, self.filled - row.width), row.fill))
        for fragment in reversed(fragments):
            style = self.style(fragment.look)
            if fragment.at >= 0:
                at = fragment.at
                placed.append(_placed(fragment.text, style, at, line))
            else:
                placed += [_placed(cell, style, at, line) for cell in reversed(fragment.text)]
        return Strip(reversed(placed))

    def style(self, look: Look) -> Style:
        style = self._styles.get(look)
        if style is None:
            style = self._styles[look] = self._color(look)
        return style


def _shows(fragment: Fragment) -> bool:
    return bool(fragment.text)


def _placed(text: str, style: Style, at: int, line: int) -> Segment:
    return Segment(text, style + Style.from_meta({"offset": (at, line)}))
