"""Searching in the transcript."""

from minichat.ui.transcript.entry import EntryPart
from minichat.ui.transcript.finding import Find
from minichat.ui.transcript.painter import Painter
from minichat.ui.transcript.view import View
from minichat.ui.transcript.window import Viewport, budget


class Search:
    """Highlights the hits of a search and scrolls to one of them."""

    def __init__(self, view: View, painter: Painter, window: Viewport) -> None:
        self._view, self._painter, self._window = view, painter, window

    def begin(self, text: str, message: int | None = None) -> bool:
        """Start a search from a message, or the first visible line. Return False if there is no hit."""
        if not text or not self._view.entries:
            self.end()
            return False
        find = self._painter.find = Find(self._view, text)
        found = find.start(*self._start(message))
        self._show()
        return found

    def _start(self, message: int | None) -> tuple[int, int]:
        """The index of an entry, and the offset in its text."""
        for index, entry in enumerate(self._view.entries):
            if entry.message.id == message:
                return index, 0
        top = self._view.place(self._window.top)
        leaf = self._painter.leaf(top)
        in_body = leaf is not None and top.spot.part == EntryPart.BODY
        return self._view.index(top.entry), leaf.start if leaf and in_body else 0

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
        self._painter.find = self._painter.current = None

    @property
    def count(self) -> tuple[int, int, bool]:
        """The current hit's number, the total, and whether the time allowed counting all."""
        return self._painter.find.count(budget()) if self._painter.find is not None else (0, 0, True)

    def _show(self) -> None:
        """Scroll the current hit near the middle if it is not in view."""
        hit = self._painter.find.place() if self._painter.find is not None else None
        self._painter.current = None
        if hit is None:
            return
        place, rank = hit
        self._painter.current = (place.key, rank)
        self._view.changed(place.entry)
        self._window.reveal(place)
