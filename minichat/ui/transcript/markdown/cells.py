"""Character widths and line breaks."""

from bisect import bisect_right
from itertools import accumulate

from rich.cells import get_character_cell_size

Span = tuple[int, int]
_MARKS_A_CELL = 6  # text of zero width must break somewhere, too


def cell_width(text: str) -> int:
    """The width in cells of text returned by drawable()."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def clip(text: str, width: int, sign: str) -> str:
    """Cut the text to the width, ending with a sign if some is missing."""
    if cell_width(text) <= width:
        return text
    (_, end), *_ = break_line(text, 0, len(text), max(1, width - cell_width(sign)), words=False)
    return (text[:end] + sign)[: max(0, width)] if width > 0 else ""


def wrap(text: str, width: int, start: int = 0, end: int | None = None) -> list[Span]:
    """Wrap text[start:end] to a width. Return the lines as ranges, without the white space between them."""
    width = max(1, width)
    end = len(text) if end is None else end
    lines: list[Span] = []
    while True:
        newline = text.find("\n", start, end)
        stop = end if newline < 0 else newline
        lines += break_line(text, start, stop, width)
        if newline < 0:
            return lines
        start = newline + 1


def break_line(text: str, start: int, end: int, width: int, words: bool = True) -> list[Span]:
    """Fold one line of text at spaces, or at any character if there are none."""
    if end - start <= width and (text.isascii() or cell_width(text[start:end]) <= width):
        return [(start, end)]
    if text.isascii():
        return _fold_plain(text, start, end, width, words)
    widths = list(map(get_character_cell_size, text[start:end]))
    if 0 not in widths and 2 not in widths:
        return _fold_plain(text, start, end, width, words)
    return _fold_wide(text, start, end, width, words, widths)


def _fold_plain(text: str, start: int, end: int, width: int, words: bool) -> list[Span]:
    """Fold text whose characters are all one cell wide."""
    lines = []
    while end - start > width:
        cut = text.rfind(" ", start + 1, start + width + 1) if words else -1
        if cut < 0:
            lines.append((start, start + width))
            start += width
        else:
            lines.append((start, cut))
            start = cut + 1
    return lines if lines and start == end else [*lines, (start, end)]


def _fold_wide(text: str, start: int, end: int, width: int, words: bool, widths: list[int]) -> list[Span]:
    """Fold text with wide characters: ideographs break anywhere, a combining mark stays with its letter."""
    origin = start
    ends = list(accumulate(widths))  # cells up to and including each character
    lines = []
    while start < end:
        before = ends[start - origin - 1] if start > origin else 0
        fits = bisect_right(ends, before + width, start - origin) + origin
        fits = max(start + 1, min(fits, end, start + width * _MARKS_A_CELL))
        if fits >= end:
            break
        cut, after = fits, fits
        if words and text[fits] == " ":
            after = fits + 1
        elif words and widths[fits - origin] < 2 and widths[fits - origin - 1] < 2:
            space = text.rfind(" ", start + 1, fits)
            ideograph = next((at for at in range(fits - 1, start, -1) if widths[at - origin] == 2), -1)
            if space > ideograph:
                cut, after = space, space + 1
            elif ideograph >= 0:
                cut = after = ideograph + 1
        lines.append((start, cut))
        start = after
    return lines if lines and start == end else [*lines, (start, end)]
