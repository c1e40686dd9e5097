"""The panel that leads through the tour: a few sentences, what is waited for, and the keys."""

from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget


class TourPanel(Widget, can_focus=True):
    """Above the prompt. It draws what it is told, and passes its keys on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space,right,n", "turn(1)", show=False),
        Binding("backspace,left,b", "turn(-1)", show=False),
        Binding("escape,q", "leave(False)", show=False),
        Binding("k", "leave(True)", show=False),
    ]
    text: reactive[Content] = reactive(Content(""), layout=True)

    def __init__(self, turn: Callable[[int], None], leave: Callable[[bool], None]) -> None:
        super().__init__(id="tour")
        self._turn, self._leave = turn, leave

    def render(self) -> Content:
        return self.text

    def action_turn(self, by: int) -> None:
        self._turn(by)

    def action_leave(self, keep: bool) -> None:
        self._leave(keep)
