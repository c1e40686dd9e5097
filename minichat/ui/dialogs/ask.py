"""A dialog that asks for one line or several lines of text."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, TextArea

from minichat.notices import Notices
from minichat.ui.dialogs.dialog import Dialog, inner_height
from minichat.ui.panes.editor import Editor
from minichat.ui.transcript.glyphs import enterable


def ask(
    app: Notices, question: str, accept: Callable[[str], bool], given: str = "", *, refused: bool = False
) -> None:
    """Ask for a line until `accept` takes it or the user cancels.

    A `refused` one stays, to be corrected, and the notice that says why stays as long.
    """
    why = app.last_notice if refused else ""

    def take(answer: str | None) -> None:
        app.end_notice(why)
        if answer is not None and not accept(answer):
            ask(app, question, accept, answer, refused=True)

    app.push_screen(AskScreen(question, given, refused=refused), take)


class AskScreen(Dialog[str]):
    """Returns the text, or None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "take", show=False)]

    def __init__(
        self,
        question: str,
        answer: str = "",
        *,
        lines: bool = False,
        refused: bool = False,
        typed: str | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """`answer` fills the field. One line of it is selected, so that typing replaces it, unless it is
        the user's own that was `refused` and needs a correction. `typed` replaces several lines; an undo
        brings them back. `keep` is called when they change.
        """
        super().__init__()
        self._question, self._lines, self._typed = question, lines, typed
        self._keep = keep
        self._given = enterable(answer)
        self._field: Input | TextArea
        if lines:
            self._field = Editor(self._given, soft_wrap=True, highlight_cursor_line=False)
        else:
            self._field = Input(self._given, select_on_focus=not refused)
        self._field.cursor_blink = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet") as sheet:
            sheet.border_title = Content(self._question)
            sheet.border_subtitle = "^S accept  Esc cancel" if self._lines else "Enter accept  Esc cancel"
            yield self._field

    def on_mount(self) -> None:
        self.set_class(self._lines, "-lines")
        if isinstance(self._field, TextArea):
            if self._typed is not None:
                self._field.replace(self._typed, (0, 0), self._field.document.end)
            self._field.move_cursor(self._field.document.end)
        self._field.focus()

    def on_resize(self) -> None:
        if isinstance(self._field, TextArea):
            # No higher than its dialog, or it would not scroll to the cursor.
            self._field.styles.max_height = inner_height(self.size.height)

    def on_text_area_changed(self) -> None:
        self._keep()

    def on_input_submitted(self) -> None:
        self.action_take()

    def action_take(self) -> None:
        self.dismiss(self.text)

    def holds_work(self) -> bool:
        return self.text != self._given

    @property
    def text(self) -> str:
        return self._field.text if isinstance(self._field, TextArea) else self._field.value
