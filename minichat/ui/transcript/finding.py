"""Text search in the messages, only as far as needed."""

import re
from typing import NamedTuple

from minichat.ui.transcript.entry import Entry, EntryPart, Spot
from minichat.ui.transcript.markdown.document import Document, Enough
from minichat.ui.transcript.markdown.rows import RenderedLeaf
from minichat.ui.transcript.marks import row_of
from minichat.ui.transcript.view import Place, View

# Bounded, or a long run of blanks or stars would take forever.
_TOKEN = re.compile(r"[^\W_]+|\s+|[*_`~]+|[^\w\s]")
_BLANK = r"(?:[^\S\n]|\n(?![^\S\n]{0,80}\n)){1,80}+"  # within a paragraph
_MARKUP = r"[*_`~]{0,6}+"  # Markdown's, which is not drawn
_INSIDE = r"[*`~]{0,6}+"  # the same within a word, where _ is drawn
_HIDING = ("](", "```", "~~~")  # the address of a link and what a fence says are not drawn
_AT_ONCE = 100_000  # characters to search before looking at the time: a fraction of a millisecond
_DRAWN = 200  # matches in a text, up to which it is looked at how they are drawn
_SLOWER = 10  # a text that is looked at takes so many times as long


class Hit(NamedTuple):
    entry: int  # the entry's serial
    part: int  # of the entry: reasoning comes before the text
    offset: int  # in the part's text

    @property
    def at(self) -> tuple[int, int]:
        """Where it is in the entry."""
        return self.part, self.offset


def _form(before: str, token: str) -> str:
    """What may be drawn as a token after another one, with the markup between them."""
    if token[0] in "*_`~":
        return "".join(rf"\\?{re.escape(each)}" for each in token)
    markup = _MARKUP if before and before[0] not in "*_`~" else ""
    return markup + (_BLANK if token.isspace() else _INSIDE.join(map(re.escape, token)))


def _drawn(token: str) -> str:
    """A pattern for a token in drawn text."""
    return _BLANK if token.isspace() else re.escape(token)


def _without_markup(text: str) -> str:
    return text.replace("*", "").replace("`", "").replace("~", "")


class Find:
    """A case-insensitive search in the text of messages and in their reasoning.

    It finds what is drawn, not what is written: emphasis does not matter, nor do line breaks between words.
    """

    def __init__(self, view: View, text: str) -> None:
        self._view = view
        self._needle = text.lower()
        tokens = _TOKEN.findall(text)
        self._plain = len(tokens) == 1 and text[0] not in "*_`~"
        self._pattern = re.compile("".join(map(_form, ["", *tokens], tokens)), re.IGNORECASE)
        self._drawn = re.compile("".join(map(_drawn, tokens)), re.IGNORECASE)
        self._exact = re.compile(re.escape(text), re.IGNORECASE)
        self._known: dict[tuple[int, int], tuple[str, list[int]]] = {}  # by entry and part: a text, its hits
        self.current: Hit | None = None

    def ranges(self, entry: Entry, drawn: RenderedLeaf) -> list[tuple[int, int]]:
        """The matches in the visible text of a leaf."""
        pattern = self._exact if entry.message.role == "user" else self._drawn
        return [found.span() for found in pattern.finditer(drawn.plain)]

    def step(self, by: int) -> bool:
        """Go to the next or previous hit, wrapping around. Return False if there is none."""
        entries = self._view.entries
        if not entries:
            return False
        start = (
            self.current.entry - entries[0].serial if self.current else (0 if by > 0 else len(entries) - 1)
        )
        for count in range(len(entries) + 1):
            index = (start + count * by) % len(entries)
            hits = self._hits(entries[index])
            if self.current and count == 0:
                here = self.current.at
                hits = [each for each in hits if (each.at > here if by > 0 else each.at < here)]
            if hits:
                self.current = hits[0 if by > 0 else -1]
                return True
        return False

    def start(self, entry: int, at: tuple[int, int]) -> bool:
        """Go to the first hit from a part and an offset of an entry on, wrapping around.

        Return False if there is none.
        """
        hits = self._hits(self._view.entries[entry])
        self.current = next((each for each in hits if each.at >= at), None)
        if self.current is None:
            self.current = Hit(self._view.entries[entry].serial, EntryPart.SPACE, 0)
            if not self.step(1):
                self.current = None
        return self.current is not None

    def first_in(self, entry: int) -> tuple[int, int]:
        """Where to start in an entry: at its text, unless only its reasoning has a hit."""
        parts = {each.part for each in self._hits(self._view.entries[entry])}
        return EntryPart.THOUGHT if parts == {EntryPart.THOUGHT} else EntryPart.BODY, 0

    def count(self, enough: Enough) -> tuple[int, int, bool]:
        """Return the current hit's number, the total, and whether the time allowed counting all."""
        before = total = read = 0
        for entry in self._view.entries:
            if read > _AT_ONCE and enough():
                return before, max(total, int(self.current is not None)), False
            looked_at = len(self._known)
            hits = self._hits(entry)
            length = len(entry.text) + len(entry.message.reasoning)
            read += length * (_SLOWER if len(self._known) > looked_at else 1)
            if self.current and entry.serial == self.current.entry:
                before = total + sum(1 for each in hits if each.at <= self.current.at)
            total += len(hits)
        return before, total, True

    def place(self) -> tuple[Place, int] | None:
        """The line of the current hit, and its index among the leaf's ranges. Its part must be shown."""
        if self.current is None or (entry := self._view.by_serial(self.current.entry)) is None:
            return None
        document = _whole(entry, self.current.part)
        if not document.leaves:
            return None
        leaf = document.leaf_at(self.current.offset)
        begin = (self.current.part, document.leaves[leaf].start)
        drawn = document.sheet(leaf).drawn
        rank = sum(begin <= each.at < self.current.at for each in self._hits(entry))
        ranges = self.ranges(entry, drawn)
        rank = min(rank, len(ranges) - 1)
        row = row_of(drawn, ranges[rank][0]) if ranges else 0
        return Place(entry, Spot(EntryPart(self.current.part), leaf, row)), rank

    def _hits(self, entry: Entry) -> list[Hit]:
        texts = ((EntryPart.THOUGHT, entry.message.reasoning), (EntryPart.BODY, entry.text))
        return [
            Hit(entry.serial, part, offset)
            for part, text in texts
            if text
            for offset in self._offsets(entry, part, text)
        ]

    def _offsets(self, entry: Entry, part: EntryPart, text: str) -> list[int]:
        if self._as_written(entry, text):
            return self._written(text)
        known = self._known.get((entry.serial, part))
        if known is None or known[0] != text:
            offsets = [found.start() for found in self._pattern.finditer(text)]
            if not offsets:
                return offsets
            if len(offsets) <= _DRAWN:
                offsets = self._seen(entry, part, offsets)
            known = self._known[entry.serial, part] = text, offsets
        return known[1]

    def _as_written(self, entry: Entry, text: str) -> bool:
        """Whether the needle is looked for as it is, which is faster: no word has markup inside.

        In the user's own messages all is drawn.
        """
        if entry.message.role == "user":
            return True
        if not self._plain or any(each in text for each in _HIDING):
            return False
        text = text.lower()
        return _without_markup(text).count(self._needle) <= text.count(self._needle)

    def _written(self, text: str) -> list[int]:
        lower = text.lower()
        if self._needle not in lower:
            return []
        if len(lower) != len(text):  # a letter whose lower case has two characters
            return [found.start() for found in self._exact.finditer(text)]
        offsets, at = [], lower.find(self._needle)
        while at >= 0:
            offsets.append(at)
            at = lower.find(self._needle, at + len(self._needle))
        return offsets

    def _seen(self, entry: Entry, part: EntryPart, offsets: list[int]) -> list[int]:
        """As many offsets in each of these leaves as it has matches when it is drawn."""
        document = _whole(entry, part)
        leaves = dict.fromkeys(document.leaf_at(offset) for offset in offsets) if document.leaves else {}
        return [
            document.leaves[leaf].start + number
            for leaf in leaves
            for number in range(len(self.ranges(entry, document.sheet(leaf).drawn)))
        ]


def _whole(entry: Entry, part: int) -> Document:
    """The part of the entry, parsed to its end."""
    body = entry.open(lambda: False)
    document = entry.thought.document if part == EntryPart.THOUGHT and entry.thought else body
    document.catch_up()
    return document
