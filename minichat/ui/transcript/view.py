"""All messages of a chat in one tall column, of which only the visible part is measured and drawn."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minichat.chats.model import Message
from minichat.ui.transcript.entry import Entry, EntryPart, Spot
from minichat.ui.transcript.markdown.canvas import Canvas
from minichat.ui.transcript.markdown.document import Enough
from minichat.ui.transcript.markdown.heights import Heights

_MIDDLE = 1 << 30  # the first entry's serial; older entries have lower ones
_BITS_PART, _BITS_LEAF = 3, 24


def never() -> bool:
    return False


class Place(NamedTuple):
    """A line of the column, independent of the heights above it."""

    entry: Entry
    spot: Spot

    @property
    def key(self) -> int:
        """The leaf's number, increasing downwards. Selections use it, so they survive a resize."""
        part = (self.entry.serial << _BITS_PART) | self.spot.part
        return (part << _BITS_LEAF) | self.spot.leaf


class View:
    """The column of entries, without scrolling."""

    def __init__(self, canvas: Canvas) -> None:
        self.canvas = canvas
        self.letter = ""
        self.entries: list[Entry] = []
        self._heights = Heights()

    def show(self, messages: Sequence[Message], letter: str) -> None:
        self.letter = letter
        self.entries = [
            Entry(message, _MIDDLE + index, letter, self.canvas) for index, message in enumerate(messages)
        ]
        for entry in self.entries[-1:]:
            entry.newest = True
        self._heights = Heights(entry.height for entry in self.entries)

    def prepend(self, messages: Sequence[Message]) -> None:
        first = self.entries[0].serial if self.entries else _MIDDLE
        older = [
            Entry(message, first - len(messages) + index, self.letter, self.canvas)
            for index, message in enumerate(messages)
        ]
        self.entries[:0] = older
        self._heights.prepend(entry.height for entry in older)

    def append(self, message: Message) -> None:
        serial = self.entries[-1].serial + 1 if self.entries else _MIDDLE
        for before in self.entries[-1:]:
            before.newest = False
            self.changed(before)
        entry = Entry(message, serial, self.letter, self.canvas)
        entry.newest = entry.whole = True
        self.entries.append(entry)
        self._heights.append(entry.height)

    def resize(self, width: int, filled: int) -> None:
        self.canvas.resize(width, filled)
        for entry in self.entries:
            entry.resize()
        self._heights = Heights(entry.height for entry in self.entries)

    def name_keys(self, unfolds: str, words: str) -> bool:
        """Set the key that shows reasoning, and how failed replies offer a retry; empty: not at all.

        Return whether a message changed.
        """
        other_key = self.canvas.unfolds != unfolds
        changed = [
            entry for entry in self.entries if entry.message.retriable and self.canvas.retries != words
        ]
        self.canvas.unfolds, self.canvas.retries = unfolds, words
        for entry in changed:
            self.changed(entry)
        return other_key or bool(changed)

    def set_letter(self, letter: str) -> bool:
        """Set the chat's letter. Return whether it is another one."""
        if other := letter != self.letter:
            self.letter = letter
            for entry in self.entries:
                entry.letter = letter
        return other

    @property
    def streaming(self) -> bool:
        """Whether the last message is still streaming."""
        return bool(self.entries) and self.entries[-1].message.state == "streaming"

    # Heights

    @property
    def total(self) -> int:
        return self._heights.total

    def top(self, entry: Entry) -> int:
        return self._heights.top(self.index(entry))

    def index(self, entry: Entry) -> int:
        return entry.serial - self.entries[0].serial

    def changed(self, entry: Entry) -> None:
        """Update the height of an entry."""
        self._heights[self.index(entry)] = entry.height

    def measure(self, top: int, bottom: int, enough: Enough = never) -> None:
        """Measure the exact heights between two lines."""
        if not self.entries:
            return
        index, _ = self._heights.find(top)
        while index < len(self.entries) and self._heights.top(index) < bottom:
            entry, above = self.entries[index], self._heights.top(index)
            entry.open(enough)
            entry.measure(top - above, bottom - above)
            self._heights[index] = entry.height
            index += 1

    def measure_end(self, lines: int, enough: Enough = never) -> None:
        """Measure the exact heights of the last lines."""
        before = -1
        while before != self.total:
            before = self.total
            self.measure(before - lines, before, enough)

    # Lines and places

    def place(self, y: int) -> Place:
        index, line = self._heights.find(y)
        return Place(self.entries[index], self.entries[index].spot(line))

    def line(self, place: Place) -> int:
        return self.top(place.entry) + place.entry.line(place.spot)

    def place_of(self, key: int) -> Place | None:
        """The first line of the leaf with this key."""
        part, leaf = key >> _BITS_LEAF, key & ((1 << _BITS_LEAF) - 1)
        entry = self.by_serial(part >> _BITS_PART)
        return Place(entry, Spot(EntryPart(part & ((1 << _BITS_PART) - 1)), leaf, 0)) if entry else None

    def by_serial(self, serial: int) -> Entry | None:
        index = serial - self.entries[0].serial if self.entries else -1
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def between(self, top: int, bottom: int) -> Iterable[Entry]:
        """The entries between two lines."""
        if not self.entries:
            return []
        return self.entries[self._heights.find(top)[0] : self._heights.find(bottom - 1)[0] + 1]
