"""Where a person types. Every editing key of a text area stays; Enter sends."""

from collections.abc import Mapping

from textual.events import Key
from textual.message import Message
from textual.widgets import TextArea

from minichat.keys import keys_of


class Prompt(TextArea):
    """Grows with its text. Up in an empty prompt recalls, the page keys and the last End move the chat."""

    class Sent(Message):
        """The person wants this text to go."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Recall(Message):
        """Up, with nothing typed."""

    class Scroll(Message):
        """The chat above is to move: by pages, or to its end with 0."""

        def __init__(self, pages: int) -> None:
            super().__init__()
            self.pages = pages

    def __init__(self, id: str | None = None) -> None:
        super().__init__(
            id=id, soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, max_checkpoints=200
        )
        self.cursor_blink = False  # a blinking cursor is a timer, and bytes over the network for nothing
        self.obey({})

    def obey(self, keymap: Mapping[str, str]) -> None:
        """The person's own keys for sending and for a new line."""
        self._send_keys = keys_of("prompt.send", keymap).split(",")
        self._newline_keys = keys_of("prompt.newline", keymap).split(",")

    async def _on_key(self, event: Key) -> None:
        # Not bindings with priority: those overtake the characters that were typed just before.
        if event.key in self._send_keys:
            self._send()
        elif event.key in self._newline_keys:
            self.replace("\n", *self.selection)
        else:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()

    def _send(self) -> None:
        text = self.text.strip("\n")
        if text.strip():
            self.load_text("")
            self.post_message(self.Sent(text))

    def action_cursor_up(self, select: bool = False) -> None:
        if self.text:
            super().action_cursor_up(select)
        else:
            self.post_message(self.Recall())

    def action_cursor_line_end(self, select: bool = False) -> None:
        if not select and self.cursor_location == self.document.end:
            self.post_message(self.Scroll(0))
        super().action_cursor_line_end(select)

    def action_cursor_page_up(self) -> None:
        self.post_message(self.Scroll(-1))

    def action_cursor_page_down(self) -> None:
        self.post_message(self.Scroll(1))

    def put(self, text: str) -> None:
        """Another text, with the cursor at its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)
