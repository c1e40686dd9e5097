"""Text search in the messages, only as far as needed."""

import re
from typing import NamedTuple

from minichat.ui.transcript.entry import Entry, EntryPart, Spot
from minichat.ui.transcript.markdown.document import Enough
from minichat.ui.transcript.markdown.rows import RenderedLeaf
from minichat.ui.transcript.marks import row_of
from minichat.ui.transcript.view import Place, View

# Bounded, or a long run of blanks or stars would take forever.
_TOKEN = re.compile(r"[^\W_]+|\s+|[*_`~]+|[^\w\s]")
_BLANK = r"(?:[^\S\n]|\n(?![^\S\n]{0,80}\n)){1,80}+"  # within a paragraph
_MARKUP = r"[*_`~]{0,6}+"  # Markdown's, which is not drawn
_INSIDE = r"[*`~]{0,6}+"  # the same within a word, where _ is drawn
_LITERAL = str.maketrans("*_`~", "\ue000\ue001\ue002\ue003")  # in code they are drawn
_LINES = r"(?:[^`\n]|\n(?![ \t]{0,80}\n))"  # within a paragraph
_CODE = re.compile(
    r"^[ \t>*+\-\d.)]{0,80}(?P<fence>`{3,}+|~{3,}+)[^`\n]*\n"
    r"(?P<block>(?:(?![ \t>]{0,80}(?P=fence)[`~]*[ \t]*$)(?:.*\n|.+))*+).*"
    rf"|(?<![`\\])`(?!`)(?P<one>{_LINES}{{1,2000}}+)`(?!`)"
    rf"|(?<![`\\])``(?!`)(?P<two>(?:{_LINES}|`(?!`)){{1,2000}}+)``(?!`)",
    re.MULTILINE,
)
_AT_ONCE = 100_000  # characters to search before looking at the time: a fraction of a millisecond


class Hit(NamedTuple):
    entry: int  # the entry's serial
    offset: int  # in the message's text


def _form(before: str, token: str) -> str:
    """What matches a token after another one, with the markup between them."""
    if token[0] in "*_`~":
        return _drawn(token)
    markup = _MARKUP if before and before[0] not in "*_`~" else ""
    return markup + (_BLANK if token.isspace() else _INSIDE.join(map(re.escape, token)))


def _drawn(token: str) -> str:
    """A pattern for a token in drawn text. Inside code, some characters are replaced (`_code_marked`)."""
    if token.isspace():
        return _BLANK
    return "".join(
        f"[{each}{each.translate(_LITERAL)}]" if each in "*_`~" else re.escape(each) for each in token
    )


def _code_marked(text: str) -> str:
    """The text with other characters in place of those that are no markup because they are in code."""
    if "`" not in text and "~~~" not in text:
        return text

    def marked(found: re.Match[str]) -> str:
        start, end = (place - found.start() for place in found.span(found.lastgroup or 0))
        return found[0][:start] + found[0][start:end].translate(_LITERAL) + found[0][end:]

    return _CODE.sub(marked, text)


def _without_markup(text: str) -> str:
    return text.replace("*", "").replace("`", "").replace("~", "")


class Find:
    """A case-insensitive search in the text of messages.

    It finds what is drawn, not what is written: emphasis does not matter, nor do line breaks between words.
    """

    def __init__(self, view: View, text: str) -> None:
        self._view = view
        self._needle = text.lower()
        tokens = _TOKEN.findall(text)
        self._plain = len(tokens) == 1
        self._pattern = re.compile("".join(map(_form, ["", *tokens], tokens)), re.IGNORECASE)
        self._drawn = re.compile("".join(map(_drawn, tokens)), re.IGNORECASE)
        self._exact = re.compile(re.escape(text), re.IGNORECASE)
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
            offsets = self._offsets(index)
            if self.current and count == 0:
                here = self.current.offset
                offsets = [each for each in offsets if (each > here if by > 0 else each < here)]
            if offsets:
                self.current = Hit(entries[index].serial, offsets[0 if by > 0 else -1])
                return True
        return False

    def start(self, entry: int, offset: int) -> bool:
        """Go to the first hit from an offset on, wrapping around. Return False if there is none."""
        serial = self._view.entries[entry].serial
        here = [each for each in self._offsets(entry) if each >= offset]
        if here:
            self.current = Hit(serial, here[0])
            return True
        self.current = Hit(serial, len(self._view.entries[entry].text))
        if self.step(1):
            return True
        self.current = None
        return False

    def count(self, enough: Enough) -> tuple[int, int, bool]:
        """Return the current hit's number, the total, and whether the time allowed counting all."""
        before = total = read = 0
        for entry in self._view.entries:
            if read > _AT_ONCE and enough():
                return before, max(total, int(self.current is not None)), False
            read += len(entry.text)
            if self.current and entry.serial == self.current.entry:
                offsets = self._offsets(entry.serial - self._view.entries[0].serial)
                before = total + sum(1 for offset in offsets if offset <= self.current.offset)
            total += self._count(entry)
        return before, total, True

    def place(self) -> tuple[Place, int] | None:
        """The line of the current hit, and its index among the leaf's ranges."""
        if self.current is None or (entry := self._view.by_serial(self.current.entry)) is None:
            return None
        document = entry.open(lambda: False)
        if not document.leaves:
            return None
        leaf = document.leaf_at(self.current.offset)
        begin = document.leaves[leaf].start
        drawn = document.sheet(leaf).drawn
        rank = sum(begin <= each < self.current.offset for each in self._offsets_in(entry))
        ranges = self.ranges(entry, drawn)
        rank = min(rank, len(ranges) - 1)
        row = row_of(drawn, ranges[rank][0]) if ranges else 0
        return Place(entry, Spot(EntryPart.BODY, leaf, row)), rank

    def _as_written(self, entry: Entry) -> bool:
        """Whether the needle is looked for as it is, which is faster: no word has markup inside.

        In the user's own messages all is drawn.
        """
        if entry.message.role == "user":
            return True
        text = entry.text.lower()
        return self._plain and _without_markup(text).count(self._needle) <= text.count(self._needle)

    def _count(self, entry: Entry) -> int:
        if self._as_written(entry):
            return entry.text.lower().count(self._needle)
        return sum(1 for _ in self._pattern.finditer(_code_marked(entry.text)))

    def _offsets(self, index: int) -> list[int]:
        return self._offsets_in(self._view.entries[index])

    def _offsets_in(self, entry: Entry) -> list[int]:
        text = entry.text
        if not self._as_written(entry):
            return [found.start() for found in self._pattern.finditer(_code_marked(text))]
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
