"""Ctrl+F: a search bar below the transcript."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Label

from minichat.features.feature import Context, Feature, Leaving, ScreenCommand
from minichat.ui.panes.keybar import Hints
from minichat.ui.panes.pane import ChatPane


class FindBar(Horizontal):
    """The search text. Enter goes to the next match, Tab to the messages, and Esc closes the bar."""

    HINTS: ClassVar[Hints] = (("Enter", "next"), ("Up", "back"), ("Esc", "done"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("tab", "read", show=False),
        Binding("down", "step(1)", show=False),
        Binding("shift+enter,up", "step(-1)", show=False),
    ]

    def __init__(self, context: Context, pane: ChatPane) -> None:
        super().__init__()
        self.context, self._pane = context, pane
        self.field = Input(placeholder="Enter next  Up back  Esc done", compact=True)
        self.field.cursor_blink = False
        self.place = Label(classes="place")
        self.display = False

    def compose(self) -> ComposeResult:
        yield Label("find")
        yield self.field
        yield self.place

    def on_mount(self) -> None:
        self.watch(self._pane.transcript, "steps", self._show_place)

    def open(self, text: str = "", message: int | None = None) -> None:
        """Open the bar, maybe at the first hit of a text in a message."""
        self._pane.read_older(self._pane.conversation.chat.earlier)
        self.display = True
        if text:
            with self.prevent(Input.Changed):
                self.field.value = text
            self._pane.transcript.find(text, message)
        self._show_place()
        self.field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._pane.transcript.find(event.value)
        self._show_place()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_step(1)

    def action_step(self, by: int) -> None:
        self._pane.transcript.find_next(by)

    def action_read(self) -> None:
        """Tab: to the messages, whose keys step through the matches, too."""
        self._pane.transcript.focus()

    def action_leave(self) -> None:
        self.display = False
        self.field.value = ""
        self._pane.transcript.clear_find()
        self.context.workspace.prompt.focus()

    def _show_place(self) -> None:
        """Show the number of the current match and the total; nothing if the field is empty."""
        if not self.display:
            return
        place, total, whole = self._pane.transcript.find_count
        more = "" if whole else "+"
        matches = f"{total:,}{more} match{'es' * (total != 1 or not whole)}"
        found = f"{place:,} of {total:,}{more}" if place else matches if total else "not found"
        self.place.update(found if self.field.value else "")


class FindCloser:
    """Closes the bar of the active chat on Esc, wherever the focus is."""

    def __init__(self, context: Context) -> None:
        self._context = context
        context.leaving.append(Leaving(self._shown, self._close))

    def _shown(self) -> bool:
        return self._context.panels.chats_shown and bool(self._opened())

    def _opened(self) -> list[FindBar]:
        return [bar for bar in self._context.workspace.pane.query(FindBar) if bar.display]

    def _close(self) -> None:
        for bar in self._opened():
            bar.action_leave()


def find(context: Context, text: str = "", message: int | None = None) -> None:
    context.panels.show_chat()
    pane = context.workspace.pane
    if bars := pane.query(FindBar):
        bars.first().open(text, message)
    else:
        pane.call_later(lambda: pane.query_one(FindBar).open(text, message))  # once the new pane has its bars


FIND = Feature(
    name="find",
    title="Find in this chat",
    commands=(ScreenCommand("chat.find", "Chats", "Find in this chat", find, "ctrl+f"),),
    part=FindCloser,
    in_pane=FindBar,
    css="""
    FindBar { height: 1; background: $panel; }
    FindBar Label { padding: 0 1; color: $text-muted; }
    FindBar .place { color: $text; }
    FindBar Input, FindBar Input:focus {
        width: 1fr; background: $panel; background-tint: $foreground 0%;
    }
    """,
)
