"""Ranges of a drawn row, for selections and search hits."""

import re
from collections.abc import Sequence

from minichat.ui.transcript.markdown.cells import cell_width
from minichat.ui.transcript.markdown.rows import Fragment, RenderedLeaf, Row

_WORD = re.compile(r"[\w./~-]*\w")


def marked(row: Row, start: int, end: int, name: str) -> Row:
    """Add a look to the characters from start to end of the row's leaf."""
    fragments: list[Fragment] = []
    for fragment in row.fragments:
        text, look, at = fragment
        low, high = max(start - at, 0), min(end - at, len(text))
        if at < 0 or low >= high:
            fragments.append(fragment)
            continue
        if low:
            fragments.append(Fragment(text[:low], look, at))
        fragments.append(Fragment(text[low:high], (*look, name), at + low))
        if high < len(text):
            fragments.append(Fragment(text[high:], look, at + high))
    return Row(tuple(fragments), row.fill)


def character_at(row: Row, x: int) -> int | None:
    """The leaf's character in column x; None on decoration or beyond the end."""
    for text, _, at in row.fragments:
        width = cell_width(text)
        if x < width:
            return at + _characters(text, x) if at >= 0 else None
        x -= width
    return None


def nearest(row: Row, x: int) -> int | None:
    """The character in column x, or the nearest one; None if the row has no text."""
    here, column = None, 0
    for text, _, at in row.fragments:
        if at >= 0:
            if x < column:
                return at if here is None else here
            here = at + _characters(text, x - column)
        column += cell_width(text)
    return here


def column_of(row: Row, character: int) -> int:
    """The column of a character."""
    column = 0
    for text, _, at in row.fragments:
        if at >= 0 and at <= character <= at + len(text):
            return column + cell_width(text[: character - at])
        column += cell_width(text)
    return column


def row_of(drawn: RenderedLeaf, character: int) -> int:
    """The row that shows a character, or the last one before it if it is undrawn white space."""
    found = 0
    for index, row in enumerate(drawn.rows):
        for text, _, at in row.fragments:
            if at < 0:
                continue
            if at <= character < at + len(text):
                return index
            if at <= character:
                found = index
    return found


def ends(row: Row) -> tuple[int, int] | None:
    """The first character of a row and the end of its last; None if it has no text."""
    spans: Sequence[tuple[int, int]] = [(at, at + len(text)) for text, _, at in row.fragments if at >= 0]
    return (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else None


def word_at(text: str, at: int) -> tuple[int, int]:
    """The word that contains a character, or the character alone."""
    found = next((word for word in _WORD.finditer(text) if word.start() <= at < word.end()), None)
    return found.span() if found else (at, at + 1)


def _characters(text: str, cells: int) -> int:
    """The number of characters that start before this many cells."""
    if text.isascii():
        return min(len(text), max(0, cells))
    width = 0
    for index, character in enumerate(text):
        width += cell_width(character)
        if width > cells:
            return index
    return len(text)
