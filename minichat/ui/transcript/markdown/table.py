"""Draws tables: columns are aligned, and folded on a narrow screen."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from minichat.ui.transcript.glyphs import Glyphs
from minichat.ui.transcript.markdown.cells import cell_width, wrap
from minichat.ui.transcript.markdown.inline import Run, parse
from minichat.ui.transcript.markdown.leaves import Leaf
from minichat.ui.transcript.markdown.rows import Fragment, Look, RenderedLeaf, Row, fragments_of, links_in
from minichat.ui.transcript.markdown.splitter import cells_of

_NARROWEST = 4  # cells of the narrowest column

Cell = tuple[Run, ...]


def draw_table(leaf: Leaf, width: int, glyphs: Glyphs, base: Look) -> RenderedLeaf:
    """Draw a table. `plain` has tabs between cells and newlines between rows at any width."""
    count = len(leaf.info)
    table = []
    for line in leaf.text.split("\n"):
        cells = [parse(cell) for cell in cells_of(line)][:count]
        table.append(cells + [()] * (count - len(cells)))
    plain = "\n".join("\t".join(map(_plain, cells)) for cells in table)
    natural = [max(1, *(cell_width(_plain(cells[column])) for cells in table)) for column in range(count)]
    room = width - (count - 1) * cell_width(glyphs.column)
    links = links_in(run for cells in table for cell in cells for run in (*cell, Run(" ")))
    if room < min(_NARROWEST * count, sum(natural)):
        return RenderedLeaf(plain, _as_lines(table, width, glyphs, base), links)
    widths = fitted(natural, room)
    rows: list[Row] = []
    at = 0
    for index, cells in enumerate(table):
        head = index == 0 and not leaf.joined
        rows += _table_row(cells, widths, leaf.info, glyphs, (*base, "heading") if head else base, at)
        if head:
            line = glyphs.cross.join(glyphs.rule * each for each in widths)
            rows.append(Row((Fragment(line, (*base, "mark")),)))
        at += sum(len(_plain(cell)) + 1 for cell in cells)
    return RenderedLeaf(plain, tuple(rows), links)


def _plain(cell: Cell) -> str:
    return "".join(run.text for run in cell).replace("\n", " ").replace("\t", " ")


def fitted(natural: Sequence[int], room: int) -> list[int]:
    """Shrink columns to fit: the widest ones first, all of them to the same width."""
    if sum(natural) <= room:
        return list(natural)
    left, widths = room, list(natural)
    ascending = sorted(range(len(natural)), key=natural.__getitem__)
    for place, column in enumerate(ascending):
        share = left // (len(natural) - place)
        widths[column] = max(1, min(natural[column], share))
        left -= widths[column]
    return widths


def _table_row(
    cells: Sequence[Cell], widths: Sequence[int], aligns: str, glyphs: Glyphs, look: Look, at: int
) -> list[Row]:
    """Draw one row of the table, in as many rows as its tallest cell needs."""
    columns: list[list[list[Fragment]]] = []
    for cell, width in zip(cells, widths, strict=True):
        columns.append(fragments_of(cell, wrap(_plain(cell), width), look, at))
        at += len(_plain(cell)) + 1
    rows = []
    for line in range(max(map(len, columns))):
        fragments: list[Fragment] = []
        for column, (pieces, width, align) in enumerate(zip(columns, widths, aligns, strict=True)):
            if column:
                fragments.append(Fragment(glyphs.column, (*look, "mark")))
            shown = pieces[line] if line < len(pieces) else []
            spare = width - sum(cell_width(piece.text) for piece in shown)
            left = {"l": 0, "r": spare, "c": spare // 2}[align]
            fragments += [Fragment(" " * left, look), *shown, Fragment(" " * (spare - left), look)]
        rows.append(Row(tuple(fragment for fragment in fragments if fragment.text)))
    return rows


def _as_lines(table: Sequence[Sequence[Cell]], width: int, glyphs: Glyphs, look: Look) -> tuple[Row, ...]:
    """Draw each row as running text, if the table has too many columns for the screen."""
    rows: list[Row] = []
    between = Run(glyphs.column, ("mark",))
    at = 0
    for cells in table:
        lengths = [len(_plain(cell)) for cell in cells]
        begins = [0, *accumulate(length + len(glyphs.column) for length in lengths)]
        places = list(accumulate((length + 1 for length in lengths), initial=at))
        runs = [run for cell in cells for run in (*cell, between)][:-1]
        shown = glyphs.column.join(map(_plain, cells))
        for line in fragments_of(runs, wrap(shown, width), look):
            fragments = []
            for fragment in line:
                cell = bisect_right(begins, fragment.at) - 1
                inside = fragment.at - begins[cell]
                own = places[cell] + inside if inside < lengths[cell] else -1
                fragments.append(fragment._replace(at=own))
            rows.append(Row(tuple(fragments)))
        at = places[-1]
    return tuple(rows)
