"""The tabs of the open chats on one line, with the model at the right."""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from minichat.chats.model import UNTITLED, fork_mark
from minichat.ui.marks import UNICODE, Marks, shortened
from minichat.ui.transcript.glyphs import one_line

_TITLE = 10  # title characters that tell chats apart
_OWN = 24  # characters of the active title if the others are very short
_LEAST = 5  # title characters if some chats are left out
_MOST = 40  # title characters if there is room
_TABS = 32  # cells reserved for the chats
_SOME = 48  # the same, if some chats are left out
_WIDE = 120  # columns from which all facts are shown, however many chats are open


def titled(title: str) -> str:
    """A chat's title on one line, or "new chat"."""
    return one_line(title) or UNTITLED


def cut_title(title: str, width: int, ellipsis: str) -> str:
    """A chat's title in at most so many cells. If there is room, it still tells which fork the chat is."""
    title = titled(title)
    end = fork_mark(title)
    if len(end) + _LEAST > width or cell_len(title) <= width:
        end = ""
    return shortened(Content(title.removesuffix(end)), width - len(end), ellipsis).plain + end


@dataclass(frozen=True, slots=True)
class Tab:
    """A chat's tab."""

    letter: str
    title: str
    colors: str  # style of the letter: "#101010 on #e69f00"
    active: bool = False
    shown: bool = False  # beside the active one
    running: bool = False
    unread: bool = False
    failed: bool = False
    pinned: bool = False


class ChatTabs(Widget):
    """One widget for all tabs, however many chats there are."""

    class TabActivated(Message):
        """A chat was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    tabs: reactive[tuple[Tab, ...]] = reactive(())
    facts: reactive[str] = reactive("")  # separated by two spaces, most important first
    marks: Marks = UNICODE

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._spans: list[tuple[int, int, int]] = []  # start column, end column, index

    def render(self) -> Content:
        width = self.size.width
        facts = self._fitting_facts(width)
        labels = self._labels(width - len(facts))
        room = width - len(facts) - sum(label.cell_length for _, label in labels)
        self._spans, column = [], 0
        for index, label in labels:
            self._spans.append((column, column + label.cell_length, index))
            column += label.cell_length
        return Content.assemble(*(label for _, label in labels), " " * max(0, room), (facts, "$text-muted"))

    def _fitting_facts(self, width: int) -> str:
        """The facts that fit beside all chats. Titles shrink first; for one fact, chats give way, too."""
        words = self.facts.split("  ")
        forms = [f" {'  '.join(words[:count])} " for count in range(len(words), 0, -1)]
        titled, untitled = self._cells(_LEAST, _LEAST), self._cells(0, _TITLE)
        tries = [(each, needed) for needed in (titled, untitled) for each in forms] + [(forms[-1], _SOME)]
        if width >= _WIDE:
            tries = [(each, 0) for each in forms]
        return next((facts for facts, needed in tries if len(facts) + max(needed, _TABS) <= width), "")

    def _labels(self, room: int) -> list[tuple[int, Content]]:
        """The labels that fit around the active one. If some are left out, a mark leads to the next."""
        for lengths in self._lengths(room):
            if self._cells(*lengths) <= room:
                return list(enumerate(self._of_lengths(*lengths)))
        labels = self._of_lengths(_LEAST, _LEAST)
        active = next((index for index, tab in enumerate(self.tabs) if tab.active), 0)
        whole = self._label(active, self.tabs[active], _OWN)
        labels[active] = whole if whole.cell_length + 4 <= room else labels[active]
        first = last = active
        taken = labels[active].cell_length + 4
        while True:
            if last + 1 < len(labels) and taken + labels[last + 1].cell_length <= room:
                last += 1
                taken += labels[last].cell_length
            elif first > 0 and taken + labels[first - 1].cell_length <= room:
                first -= 1
                taken += labels[first].cell_length
            else:
                break
        window = [(index, labels[index]) for index in range(first, last + 1)]
        before = [(first - 1, Content.styled(f"{self.marks.left} ", "$text-muted"))] if first else []
        after = (
            [(last + 1, Content.styled(f" {self.marks.right}", "$text-muted"))]
            if last + 1 < len(labels)
            else []
        )
        return [*before, *window, *after]

    def _lengths(self, room: int) -> Iterator[tuple[int, int]]:
        """Maximum lengths of the titles and of the active one to try, the best first."""
        alike = bisect(range(_TITLE, _MOST), room, key=lambda length: self._cells(length, length))
        yield _TITLE + alike - 1, _TITLE + alike - 1
        for own in (_OWN, _TITLE, _LEAST):
            others = bisect(range(_LEAST, _TITLE), room, key=lambda length: self._cells(length, own))
            yield _LEAST + others - 1, own
        own = bisect(range(_TITLE, _MOST), room, key=lambda length: self._cells(0, length))
        yield 0, max(_TITLE + own - 1, _TITLE)

    def _cells(self, others: int, own: int) -> int:
        return sum(label.cell_length for label in self._of_lengths(others, own))

    def _of_lengths(self, others: int, own: int) -> list[Content]:
        return [self._label(at, tab, own if tab.active else others) for at, tab in enumerate(self.tabs)]

    def _label(self, index: int, tab: Tab, longest: int) -> Content:
        title = self._cut(index, tab.title, longest) if longest else ""
        sign = self.marks.running if tab.running else self.marks.unread if tab.unread else ""
        sign = self.marks.failed if tab.failed and not tab.running else sign
        style = "bold $text on $panel" if tab.active else "$text" if tab.shown else "$text-muted"
        pin = self.marks.pinned if tab.pinned else " "
        number = f" {index + 1}{pin}" if index < 9 else pin
        return Content.assemble(
            (number, "$text-muted on $panel" if tab.active else "$text-muted"),
            (tab.letter, f"bold {tab.colors}"),
            (f" {title} " if title else " ", style),
            (f"{sign} " if sign else "", style),
        )

    def _cut(self, index: int, title: str, longest: int) -> str:
        """The start of a long title, or its end if only that differs from an earlier one."""
        if len(title) <= longest:
            return title
        start, end = title[: longest - 1], title[1 - longest :]
        alike = (each.title for each in self.tabs[:index] if each.title.startswith(start))
        if any(not each.endswith(end) for each in alike):
            return self._fork(title, longest) or self.marks.ellipsis + end
        return start + self.marks.ellipsis

    def _fork(self, title: str, longest: int) -> str:
        """Which fork the chat is, in its longest form that fits; empty if it is none, or none fits."""
        if not (mark := fork_mark(title)):
            return ""
        start = title[: max(longest - len(mark) - 1, 0)]
        word = mark.strip("()")
        forms = (f"{start}{self.marks.ellipsis}{mark}" if start else mark, mark, word, word.replace(" ", ""))
        return next((form for form in forms if len(form) <= longest), "")

    def on_click(self, event: Click) -> None:
        for start, end, index in self._spans:
            if start <= event.x < end:
                self.post_message(self.TabActivated(index))
