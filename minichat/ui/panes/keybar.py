"""The key bar at the bottom: the engine's state and the main keys, which can be clicked."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class Key(NamedTuple):
    """A key's name and label. A click runs the command, or presses the key."""

    written: str
    label: str
    command: str = ""  # a command's id
    pressed: str = ""
    here: bool = False  # it acts on what has the focus, or on the reply


Hints = tuple[tuple[str, str], ...]  # binding ids or key names, each with a label


@runtime_checkable
class Hinting(Protocol):
    """A widget whose keys are shown in the key bar while it has the focus."""

    HINTS: ClassVar[Hints]


@runtime_checkable
class ChangingHints(Protocol):
    """A widget whose keys depend on what is selected in it. It posts `HintsChanged` when they change."""

    @property
    def hints(self) -> Hints: ...


class HintsChanged(Message):
    """The focused widget has other keys now."""


class KeyBar(Widget):
    """State at the left, keys at the right. Keys that do not fit are left out, the last first.

    What is about the engine is left out before the keys of the focus.
    """

    trouble: reactive[str] = reactive("loading", layout=False)  # why the engine is unavailable
    work: reactive[str] = reactive("", layout=False)  # what the engine does
    lack: reactive[str] = reactive("", layout=False)  # why it does nothing, although there is a link
    # Where the engine runs, and switches that differ from its start.
    about: reactive[str] = reactive("", layout=False)
    unsaved: reactive[bool] = reactive(False, layout=False)  # new messages are only in memory
    fault: reactive[bool] = reactive(False, layout=False)
    keys: reactive[Sequence[Key]] = reactive((), layout=False)

    class Pressed(Message):
        """A key's label was clicked."""

        def __init__(self, key: Key) -> None:
            super().__init__()
            self.key = key

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._spans: list[tuple[int, int, Key]] = []  # start column, end column

    def render(self) -> Content:
        state = self._state(self.about)
        fitting = self._fitting(self.size.width - state.cell_length - 2)
        if any(key.here for key in self.keys[len(fitting) :]):
            state = self._state("")
            fitting = self._fitting(self.size.width - state.cell_length - 2)
        taken = sum(len(key.written) + len(key.label) + 3 for key in fitting)
        shown, column = [], self.size.width - taken
        self._spans = []
        for key in fitting:
            written, label = (f"{key.written} ", "bold $text-accent"), (f"{key.label}  ", "$text-muted")
            shown.append(Content.assemble(written, label))
            width = len(key.written) + len(key.label)
            self._spans.append((column, column + width + 1, key))
            column += width + 3
        return Content.assemble(state, " " * max(self.size.width - taken - state.cell_length, 1), *shown)

    def _state(self, about: str) -> Content:
        words = self.trouble or "  ".join(filter(None, (self.lack or self.work, about)))
        faulty = self.fault or (self.lack and not self.trouble)
        state = Content.styled(f" {words}", "bold $text-error" if faulty else "$text-muted")
        if self.unsaved:
            state = Content.assemble(state, ("  chats are not saved", "bold $text-error"))
        return state

    def _fitting(self, room: int) -> list[Key]:
        fitting = []
        for key in self.keys:
            room -= len(key.written) + len(key.label) + 3
            if room < 0:
                break
            fitting.append(key)
        return fitting

    def on_click(self, event: Click) -> None:
        for start, end, key in self._spans:
            if start <= event.x < end:
                self.post_message(self.Pressed(key))
