"""The decoding drawer: how this chat's replies are drawn, and what is likely to come next."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from minichat.widgets.knobs import Knobs
from minichat.widgets.likely import LikelyTokens


class DecodingDrawer(VerticalScroll, can_focus=False):
    """Beside the chats; one for whichever is active."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    class Left(Message):
        """Back to the prompt."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.knobs, self.likely = Knobs(), LikelyTokens()

    def compose(self) -> ComposeResult:
        yield self.knobs
        yield Static("next token", classes="section")
        yield self.likely

    def action_leave(self) -> None:
        self.post_message(self.Left())
