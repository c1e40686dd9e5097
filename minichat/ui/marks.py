"""The symbols of the user interface, in Unicode and in ASCII."""

from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.scrollbar import ScrollBarRender


@dataclass(frozen=True, slots=True)
class Marks:
    """One symbol for each meaning."""

    running: str = "●"
    unread: str = "○"
    failed: str = "✗"
    left: str = "‹"
    right: str = "›"
    pointer: str = "▸"
    above: str = "↑"
    below: str = "↓"
    becomes: str = "→"
    dot: str = " · "
    bar: str = "█"
    rest: str = "░"
    ellipsis: str = "…"
    unused: str = "–"
    blank: str = "·"
    pinned: str = "◆"


UNICODE = Marks()
ASCII = Marks(
    running="*",
    unread="o",
    failed="x",
    left="<",
    right=">",
    pointer=">",
    above="^",
    below="v",
    becomes="->",
    dot=" - ",
    bar="#",
    rest=".",
    ellipsis="~",
    unused="-",
    blank="_",
    pinned="^",
)


def shortened(content: Content, width: int, ellipsis: str) -> Content:
    """Cut the text to a width. Textual's own cut ends in a character that is not ASCII."""
    if content.cell_length <= width:
        return content
    return Content.assemble(content.truncate(max(width - len(ellipsis), 0)), ellipsis[: max(width, 0)])


def ending(text: str, width: int, ellipsis: str) -> str:
    """Cut the start of a text whose end tells it from others."""
    if cell_len(text) <= width:
        return text
    text = text[-width:]
    while cell_len(text) > width - len(ellipsis):
        text = text[1:]
    return ellipsis + text


class PlainBars(ScrollBarRender):
    """A scroll bar of whole cells, without fractional blocks at its ends."""

    VERTICAL_BARS = [" "] * 8
    HORIZONTAL_BARS = VERTICAL_BARS
