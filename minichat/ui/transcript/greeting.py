"""The greeting of an empty chat."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from minichat.ui.transcript.markdown.cells import clip
from minichat.ui.transcript.markdown.rows import Fragment, Look, Row

_EASY = 76  # columns for a readable paragraph
_INDENT = "   "


@dataclass(frozen=True, slots=True)
class Greeting:
    """Paragraphs around sample messages, which can be clicked."""

    above: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    def row(self, y: int, width: int, cut: str) -> Row:
        """Line y of the greeting; paragraphs are separated by blank lines."""
        lines = _lines(self, width, cut)
        text, look, _ = lines[y] if y < len(lines) else ("", (), "")
        return Row((Fragment(text, look),)) if text else Row()

    def tried(self, y: int, width: int, cut: str) -> str:
        """The sample message on line y; empty on other lines."""
        lines = _lines(self, width, cut)
        return lines[y][2] if 0 <= y < len(lines) else ""


@lru_cache(maxsize=16)  # each row of a frame asks for them
def _lines(greeting: Greeting, width: int, cut: str) -> tuple[tuple[str, Look, str], ...]:
    """Text, look and sample message of each line."""
    return (
        *(line for each in greeting.above for line in _paragraph(each, width)),
        *((clip(f"{_INDENT}{each}", width - 1, cut), ("link",), each) for each in greeting.tries),
        *(line for each in greeting.below for line in _paragraph(each, width)),
    )


def _paragraph(text: str, width: int) -> Iterator[tuple[str, Look, str]]:
    yield "", (), ""
    for line in textwrap.wrap(text, max(min(width - 2, _EASY), 8)):
        yield f" {line}", ("note",), ""
