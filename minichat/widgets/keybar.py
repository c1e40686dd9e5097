"""The last line: how the engine is, and the keys that matter most. They can be clicked, too."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

Key = tuple[str, str, str]  # as it is written, what it does, and the action of a click on it
Hints = tuple[tuple[str, str], ...]  # ids of bindings, or keys in words; and what they do


@runtime_checkable
class Hinting(Protocol):
    """A widget whose keys stand in the last line while it has the focus."""

    HINTS: ClassVar[Hints]


class KeyBar(Widget):
    """State at the left, keys at the right; keys that do not fit are left out, the last first."""

    trouble: reactive[str] = reactive("", layout=False)  # why nothing can be asked: it loads, or is gone
    work: reactive[str] = reactive("", layout=False)  # what the engine does
    about: reactive[str] = reactive("", layout=False)  # where it is, and what it lacks
    fault: reactive[bool] = reactive(False, layout=False)
    keys: reactive[Sequence[Key]] = reactive((), layout=False)

    class Pressed(Message):
        """A key's label was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._spans: list[tuple[int, int, str]] = []  # from, to, action

    def render(self) -> Content:
        words = self.trouble or "  ".join(filter(None, (self.work, self.about)))
        state = Content.styled(f" {words}", "bold $text-error" if self.fault else "$text-muted")
        fitting = self._fitting(self.size.width - state.cell_length - 2)
        taken = sum(len(key) + len(label) + 3 for key, label, _ in fitting)
        shown, column = [], self.size.width - taken
        self._spans = []
        for key, label, action in fitting:
            shown.append(Content.assemble((f"{key} ", "bold $text-accent"), (f"{label}  ", "$text-muted")))
            if action:
                self._spans.append((column, column + len(key) + len(label) + 1, action))
            column += len(key) + len(label) + 3
        return Content.assemble(state, " " * max(self.size.width - taken - state.cell_length, 1), *shown)

    def _fitting(self, room: int) -> list[Key]:
        fitting = []
        for item in self.keys:
            room -= len(item[0]) + len(item[1]) + 3
            if room < 0:
                break
            fitting.append(item)
        return fitting

    def on_click(self, event: Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x < end:
                self.post_message(self.Pressed(action))
