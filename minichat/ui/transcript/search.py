"""Searching in the transcript."""

from minichat.ui.transcript.entry import Entry, EntryPart
from minichat.ui.transcript.finding import Find, Hit
from minichat.ui.transcript.painter import Painter
from minichat.ui.transcript.view import View
from minichat.ui.transcript.window import Viewport, budget


class Search:
    """Highlights the hits of a search and scrolls to one of them."""

    def __init__(self, view: View, painter: Painter, window: Viewport) -> None:
        self._view, self._painter, self._window = view, painter, window
        self._unfolded: Entry | None = None  # whose reasoning shows the current hit, and was folded before

    def begin(self, text: str, message: int | None = None) -> bool:
        """Start a search from a message, or the first visible line. Return False if there is no hit."""
        if not text or not self._view.entries:
            self.end()
            return False
        find = self._painter.find = Find(self._view, text)
        found = find.start(*self._start(find, message))
        self._show()
        return found

    def _start(self, find: Find, message: int | None) -> tuple[int, tuple[int, int]]:
        """The index of an entry, and where to start in it."""
        for index, entry in enumerate(self._view.entries):
            if entry.message.id == message:
                return index, find.first_in(index)
        top = self._view.place(self._window.top)
        leaf = self._painter.leaf(top)
        return self._view.index(top.entry), (top.spot.part, leaf.start) if leaf is not None else (0, 0)

    def step(self, by: int) -> bool:
        """Go to the next hit, or with -1 to the previous one."""
        if self._painter.find is None or not self._painter.find.step(by):
            return False
        self._show()
        return True

    def resized(self) -> None:
        """Adapt to a new width, then show the hit again: a hidden chat gets its size after the search."""
        self._window.resized()
        if self._window.revealed:
            self._show()

    def restart(self) -> None:
        """Forget the current hit, as the messages have changed."""
        if self._painter.find is not None:
            self._painter.find.current = self._painter.current = None

    def end(self) -> None:
        self._unfolded = None  # the user may go on reading there
        self._painter.find = self._painter.current = None

    @property
    def count(self) -> tuple[int, int, bool]:
        """The current hit's number, the total, and whether the time allowed counting all."""
        return self._painter.find.count(budget()) if self._painter.find is not None else (0, 0, True)

    def _show(self) -> None:
        """Scroll the current hit near the middle if it is not in view."""
        find = self._painter.find
        if find is not None and find.current is not None:
            self._unfold(find.current)
        hit = find.place() if find is not None else None
        self._painter.current = None
        if hit is None:
            return
        place, rank = hit
        self._painter.current = (place.key, rank)
        self._view.changed(place.entry)
        self._window.reveal(place)

    def _unfold(self, hit: Hit) -> None:
        """Show the reasoning that the hit is in, and fold what was unfolded for the hit before."""
        entry = self._view.by_serial(hit.entry) if hit.part == EntryPart.THOUGHT else None
        if entry is not None:
            entry.open(lambda: False)
        if (before := self._unfolded) is not None and before is not entry:
            if self._view.by_serial(before.serial) is before and before.thought and before.thought.unfolded:
                self._window.fold(before)
            self._unfolded = None
        if entry is not None and entry.thought is not None and not entry.thought.unfolded:
            self._window.fold(entry)
            self._unfolded = entry
