"""The panel of the tour: a few sentences, the result, and the keys."""

import re
from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from minichat.ui.marks import UNICODE, Marks
from minichat.ui.panes.prompt import Prompt


class TourPanel(Widget, can_focus=True):
    """Displays a page above the prompt and forwards its keys. Text that does not fit scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space,right,n", "turn_page(1)", show=False),
        Binding("backspace,left,b", "turn_page(-1)", show=False),
        Binding("r", "play", show=False),
        Binding("up", "scroll_by(-1)", show=False),
        Binding("down", "scroll_by(1)", show=False),
        Binding("q", "leave(False)", show=False),
        Binding("k", "leave(True)", show=False),
    ]
    text: reactive[Content] = reactive(Content(""), layout=True)
    keys: reactive[Content] = reactive(Content(""))
    marks: Marks = UNICODE

    def __init__(
        self,
        turn_page: Callable[[int], None],
        play: Callable[[], None],
        leave: Callable[[bool], None],
        resized: Callable[[], None],
    ) -> None:
        super().__init__(id="tour")
        self._turn_page, self._play, self._leave, self._resized = turn_page, play, leave, resized
        self._first = 0  # the first visible line of the text

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.text.wrap(width)) + 1

    def render(self) -> Content:
        height = self.size.height
        lines = self.text.wrap(self.size.width)
        room = max(height - 1, 1)
        last = max(len(lines) - room, 0)
        self._first = min(self._first, last)
        return Content("\n").join([*lines[self._first : self._first + room], self._line(self._first < last)])

    def _line(self, more: bool) -> Content:
        """The keys. `more`: there is more text below."""
        sign, word = (f"{self.marks.below} ", "bold $text-accent"), ("more  ", "$text-muted")
        way = Content.styled("" if self.has_focus else self._way, "$text-muted")
        line = Content.assemble(*((sign, word) if more else ()), way, self.keys)
        if more and len(line.plain.rstrip()) > self.size.width:
            line = Content.assemble(sign, way, self.keys)
        return line.truncate(self.size.width)

    @property
    def _way(self) -> str:
        """How its keys are reached. From everywhere else, Esc leads to the prompt, which is next to it."""
        return "Shift+Tab for  " if isinstance(self.screen.focused, Prompt) else "Esc, Shift+Tab for  "

    def say(self, text: Content, keys: Content, *, end: bool) -> None:
        """Show a page. `end`: scroll to its end, where the new text is."""
        if text.plain != self.text.plain:
            self._first = len(text) if end else 0
        self.text, self.keys = text, keys

    def action_scroll_by(self, lines: int) -> None:
        self._first = max(self._first + lines, 0)
        self.refresh()

    def on_mount(self) -> None:
        self.watch(self.screen, "focused", self._focus_moved)

    def _focus_moved(self) -> None:
        self.refresh()

    def on_resize(self) -> None:
        self._resized()

    def on_click(self, event: Click) -> None:
        """Do what the key under the pointer does."""
        at, line = event.get_content_offset(self), self.render().plain.splitlines()[-1]
        if at is not None and at.y == self.size.height - 1:
            for part in _KEY.finditer(line):
                if part.start() <= at.x < part.end() and (does := _CLICKED.get(part[1])):
                    does(self)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.action_scroll_by(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.action_scroll_by(-1)

    def action_turn_page(self, by: int) -> None:
        self._turn_page(by)

    def action_play(self) -> None:
        self._play()

    def action_leave(self, keep: bool) -> None:
        self._leave(keep)


_KEY = re.compile(r"(\S+) \S+(?: \S+)*")  # and what it does; two blanks separate them
_CLICKED: dict[str, Callable[[TourPanel], None]] = {
    "Enter": lambda panel: panel.action_turn_page(1),
    "b": lambda panel: panel.action_turn_page(-1),
    "r": TourPanel.action_play,
    "q": lambda panel: panel.action_leave(False),
    "k": lambda panel: panel.action_leave(True),
}
