"""The text of a selection: whole leaves as Markdown source, partial ones as displayed."""

from textwrap import dedent

from textual.geometry import Offset
from textual.selection import Selection

from minichat.ui.transcript.entry import Entry, EntryPart, Spot
from minichat.ui.transcript.glyphs import pasteable
from minichat.ui.transcript.markdown.document import Document
from minichat.ui.transcript.view import Place, View


def selected(view: View, selection: Selection) -> str:
    """The text under a selection. Its offsets are (character of the leaf, key of the leaf)."""
    start, end = selection
    messages = []
    first = view.place_of(start.y) if start is not None else None
    last = view.place_of(end.y) if end is not None else None
    begin = view.index(first.entry) if first else 0
    finish = view.index(last.entry) if last else len(view.entries) - 1
    for index, entry in enumerate(view.entries[begin : finish + 1], begin):
        if (first is None or index > begin) and (last is None or index < finish):
            parts = [pasteable(document.text) for _, document in entry.documents()] or [pasteable(entry.text)]
        else:
            parts = [_of_document(entry, part, document, start, end) for part, document in _documents(entry)]
        text = "\n\n".join(part for part in parts if part)
        if text:
            messages.append(text)
    return "\n\n".join(messages)


def _documents(entry: Entry) -> list[tuple[EntryPart, Document]]:
    body = entry.open(lambda: False)
    entry.catch_up(lambda: False)
    return entry.documents() or [(EntryPart.BODY, body)]


def _of_document(
    entry: Entry, part: EntryPart, document: Document, start: Offset | None, end: Offset | None
) -> str:
    """The part of a document between two positions."""
    leaves = document.leaves
    if not leaves:
        return ""
    base = Place(entry, Spot(part, 0, 0)).key
    begin = max(0, start.y - base) if start is not None else 0
    finish = min(len(leaves) - 1, end.y - base) if end is not None else len(leaves) - 1
    if begin > finish or begin >= len(leaves):
        return ""
    head = start.x if start is not None and start.y - base == begin else 0
    tail = end.x if end is not None and end.y - base == finish else None
    if begin == finish:
        return _of_leaf(document, begin, head, tail, alone=True)
    text, code = document.text, leaves[begin : finish + 1]
    if (
        all(leaf.kind == "code" and (leaf.joined or leaf is code[0]) for leaf in code)
        and _covers(document, begin, head, None)
        and _covers(document, finish, 0, tail)
    ):
        return pasteable("".join(leaf.text for leaf in code).removesuffix("\n"))
    pieces = []
    if not _covers(document, begin, head, None):
        pieces.append(
            _of_leaf(document, begin, head, None) + text[leaves[begin].end : leaves[begin + 1].start]
        )
        begin += 1
    if _covers(document, finish, 0, tail):
        pieces.append(text[leaves[begin].start : leaves[finish].end])
    else:
        if begin < finish:
            pieces.append(text[leaves[begin].start : leaves[finish].start])
        pieces.append(_of_leaf(document, finish, 0, tail))
    return pasteable("".join(pieces))


def _covers(document: Document, leaf: int, head: int, tail: int | None) -> bool:
    return head <= 0 and (tail is None or tail >= len(document.sheet(leaf).drawn.plain))


def _of_leaf(document: Document, index: int, head: int, tail: int | None, alone: bool = False) -> str:
    """Part of a leaf as displayed, or the whole leaf as source without code fences."""
    leaf = document.leaves[index]
    if alone and _covers(document, index, head, tail):
        if leaf.kind == "code":
            return pasteable(leaf.text.removesuffix("\n"))
        if leaf.kind == "plain":
            return pasteable(leaf.text)
        return pasteable(dedent(document.text[leaf.start : leaf.end]).rstrip("\r\n"))
    return document.sheet(index).drawn.plain[max(0, head) : tail]
