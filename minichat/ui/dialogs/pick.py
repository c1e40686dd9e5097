"""A list to choose from, filtered by typing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from minichat.ui.dialogs.dialog import Dialog, inner_height
from minichat.ui.dialogs.options import Options

T = TypeVar("T")

_LINES = 18  # at most, of a list


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A line of the list and its value."""

    label: Content
    value: T


class _Note(Static):
    """The note below the list."""

    def __init__(self, resized: Callable[[], None]) -> None:
        super().__init__(classes="note", markup=False)
        self._resized = resized

    def on_resize(self) -> None:
        self._resized()


class PickScreen(Dialog[T], Generic[T]):
    """`find` returns the choices for the typed text. Without a `hint` there is no input field."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "move(8)", show=False),
        Binding("pageup", "move(-8)", show=False),
    ]

    def __init__(self, title: str, find: Callable[[str], Sequence[Choice[T]]], hint: str = "") -> None:
        super().__init__()
        self._title, self._find, self._hint = title, find, hint
        self._choices: dict[Option, Choice[T]] = {}
        self._note = _Note(self._fit)
        self._note.display = False
        self.set_class(bool(hint), "-typed")

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet") as sheet:
            sheet.border_title, sheet.border_subtitle = Content(self._title), "Enter select  Esc cancel"
            if self._hint:
                yield Input(placeholder=self._hint, compact=True)
            options = Options(compact=True)
            options.can_focus = not self._hint  # or Tab would take the focus from the field
            yield options
            yield self._note

    def on_mount(self) -> None:
        if self._hint:
            field = self.query_one(Input)
            field.cursor_blink = False
            field.focus()
        self._list("")

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        """Give the list the lines that remain in the dialog, so that it scrolls to the highlighted one."""
        if not self.is_mounted:
            return
        field = 2 if self._hint else 0
        note = self._note.outer_size.height + 1 if self._note.display else 0
        options = self.query_one(OptionList)
        options.styles.max_height = max(min(_LINES, inner_height(self.size.height) - field - note), 1)
        self.call_after_refresh(options.scroll_to_highlight)

    def take(self, value: T) -> None:
        """Act on a choice; by default, close with its value."""
        self.dismiss(value)

    def say(self, words: str) -> None:
        """Show a note about the choice below the list."""
        self._note.update(words)
        self._note.display = bool(words)
        self._fit()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def choice(self, option: Option | None) -> Choice[T] | None:
        """The choice of a line. None for a line of an earlier list, whose events may arrive late."""
        return self._choices.get(option) if option is not None else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._take(event.option)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        if options.option_count:
            options.highlighted = min(max((options.highlighted or 0) + by, 0), options.option_count - 1)

    def on_input_submitted(self) -> None:
        self._take(self.query_one(OptionList).highlighted_option)

    def _take(self, option: Option | None) -> None:
        if (choice := self.choice(option)) is not None:
            self.take(choice.value)

    def _list(self, query: str) -> None:
        self._offer(self._find(query))

    def _offer(self, choices: Sequence[Choice[T]]) -> None:
        self._choices = {Option(choice.label): choice for choice in choices}
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(self._choices)
        options.highlighted = 0 if self._choices else None
