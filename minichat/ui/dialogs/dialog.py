"""The base class of dialogs over the main screen."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.events import Click, Key
from textual.screen import ModalScreen, Screen

T = TypeVar("T")


class Dialog(ModalScreen[T | None]):
    """Esc, the key that opened it, and a click outside close it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]
    opened_by: Sequence[str] = ()  # keys, as the user has bound them
    runs_commands: ClassVar[bool] = False  # keys of commands close it and act

    def on_key(self, event: Key) -> None:
        if event.key in self.opened_by:
            event.stop()
            self.action_leave()

    def on_click(self, event: Click) -> None:
        if event.widget is self and event.chain == 1 and not self.holds_work():
            self.action_leave()

    def holds_work(self) -> bool:
        """Whether a stray click outside would discard what the user has typed."""
        return False

    def action_leave(self) -> None:
        self.dismiss(None)

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close once, and only this dialog. Textual would close whichever screen is on top."""
        return super().dismiss(result) if self.is_current else AwaitComplete.nothing()


def inner_height(lines: int) -> int:
    """The lines in the largest dialog on a terminal of so many: 90 % (minichat.tcss) less its frame."""
    return max(lines * 9 // 10 - 3, 1)


def closed_by(screen: Screen[object], keys: Sequence[str]) -> None:
    """Let the keys that opened a dialog also close it."""
    if isinstance(screen, Dialog):
        screen.opened_by = keys
