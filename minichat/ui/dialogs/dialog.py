"""What stands over the main screen until it is answered, or left."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.events import Click, Key
from textual.screen import ModalScreen, Screen

T = TypeVar("T")


class Dialog(ModalScreen[T | None]):
    """Esc leaves it without an answer, and so do the key that opened it and a click beside it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]
    opened_by: Sequence[str] = ()  # keys, as the person has them

    def on_key(self, event: Key) -> None:
        if event.key in self.opened_by:
            event.stop()
            self.action_leave()

    def on_click(self, event: Click) -> None:
        if event.widget is self and event.chain == 1 and not self.holds_work():
            self.action_leave()

    def holds_work(self) -> bool:
        """Whether a click that went astray would throw away what a person has written."""
        return False

    def action_leave(self) -> None:
        self.dismiss(None)


def closed_by(screen: Screen[object], keys: Sequence[str]) -> None:
    """If a dialog has come up for these keys, they take it away again."""
    if isinstance(screen, Dialog):
        screen.opened_by = keys
