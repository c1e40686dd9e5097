"""Drawn lines without colors: fragments with the offsets of their text."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minichat.ui.transcript.markdown.cells import Span, cell_width
from minichat.ui.transcript.markdown.inline import Run

Look = tuple[str, ...]


class Fragment(NamedTuple):
    """A piece of a drawn line. `at` is its offset in the leaf's plain text; -1 for decoration."""

    text: str
    look: Look = ()
    at: int = -1


class Row(NamedTuple):
    """One drawn line; `fill` is the look of its empty end."""

    fragments: tuple[Fragment, ...] = ()
    fill: Look = ()

    @property
    def text(self) -> str:
        return "".join(fragment.text for fragment in self.fragments)

    @property
    def width(self) -> int:
        return sum(cell_width(fragment.text) for fragment in self.fragments)


class Hyperlink(NamedTuple):
    start: int
    end: int
    address: str


class RenderedLeaf(NamedTuple):
    """A leaf drawn at one width. `plain` is its visible text without the line breaks of wrapping."""

    plain: str
    rows: tuple[Row, ...]
    links: tuple[Hyperlink, ...] = ()


def links_in(runs: Iterable[Run], at: int = 0) -> tuple[Hyperlink, ...]:
    found = []
    for run in runs:
        if run.link:
            found.append(Hyperlink(at, at + len(run.text), run.link))
        at += len(run.text)
    return tuple(found)


def fragments_of(
    runs: Sequence[Run], lines: Sequence[Span], base: Look = (), at: int = 0
) -> list[list[Fragment]]:
    """Cut runs into lines. `lines` are ranges of the joined text, which begins at `at` in the leaf's text."""
    cut: list[list[Fragment]] = []
    index, begin = 0, 0  # the run that contains the line's start, and its offset
    for start, end in lines:
        line: list[Fragment] = []
        while index < len(runs) and begin + len(runs[index].text) <= start:
            begin += len(runs[index].text)
            index += 1
        here, run_begin = index, begin
        while here < len(runs) and run_begin < end:
            run = runs[here]
            text = run.text[max(0, start - run_begin) : end - run_begin]
            if text:
                look = base + run.look + (("link",) if run.link else ())
                line.append(Fragment(text, look, at + max(start, run_begin)))
            run_begin += len(run.text)
            here += 1
        cut.append(line)
    return cut
