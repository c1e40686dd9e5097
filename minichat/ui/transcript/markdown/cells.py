"""How wide characters are, and where lines break."""

from bisect import bisect_right
from itertools import accumulate

from rich.cells import get_character_cell_size

Span = tuple[int, int]
_MARKS_A_CELL = 6  # text that has no width at all must break somewhere too


def cell_width(text: str) -> int:
    """Cells of text that went through drawable()."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def clip(text: str, width: int, sign: str) -> str:
    """The text, or its beginning and a sign that some is missing."""
    if cell_width(text) <= width:
        return text
    (_, end), *_ = break_line(text, 0, len(text), max(1, width - cell_width(sign)), words=False)
    return (text[:end] + sign)[: max(0, width)] if width > 0 else ""


def wrap(text: str, width: int, start: int = 0, end: int | None = None) -> list[Span]:
    """The lines of text[start:end] at a width: each a range of it, without the white space between two."""
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
    """One line of text folded at spaces, or at any character where there is none."""
    if end - start <= width and (text.isascii() or cell_width(text[start:end]) <= width):
        return [(start, end)]
    if text.isascii():
        return _fold_plain(text, start, end, width, words)
    widths = list(map(get_character_cell_size, text[start:end]))
    if 0 not in widths and 2 not in widths:
        return _fold_plain(text, start, end, width, words)
    return _fold_wide(text, start, end, width, words, widths)


def _fold_plain(text: str, start: int, end: int, width: int, words: bool) -> list[Span]:
    """Every character is one cell wide."""
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
    """Ideographs may part anywhere, a mark never leaves its letter."""
    origin = start
    ends = list(accumulate(widths))  # cells up to and with each character
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
