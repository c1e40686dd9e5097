"""The prompt: a text area with its usual editing keys, in which Enter sends."""

from asyncio import Event, wait_for
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from rich.segment import Segment
from textual.content import Content
from textual.events import Blur, Key
from textual.message import Message
from textual.strip import Strip

from minichat.clients.bridge import in_thread
from minichat.session.attachments import Entry, Offer, entries, folder_of, offers, typing
from minichat.shell.background import begin
from minichat.ui.panes.completion import CompletionList
from minichat.ui.panes.editor import Editor
from minichat.ui.panes.keybar import Hints, HintsChanged
from minichat.ui.transcript.glyphs import enterable, skinless

_LISTING = 0.5  # seconds that Tab waits for the entries of a folder
_COMPLETION = (("Tab", "complete"), ("Up Down", "choose"), ("Esc", "close"))


class Prompt(Editor):
    """Grows with its text. In an empty prompt Up recalls earlier messages, and Down returns.
    The page keys, and End at the end of the text, scroll the chat.

    While a name is typed after an @, Tab and Enter accept the completion, and Escape closes the list.
    """

    class Submitted(Message):
        """The user sends this text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Empty(Message):
        """The send key, without anything to send."""

    class RecallRequested(Message):
        """The user recalls the message from `back` messages ago."""

        def __init__(self, back: int) -> None:
            super().__init__()
            self.back = back

    class ScrollRequested(Message):
        """Scroll the chat by pages, or to its end with 0."""

        def __init__(self, pages: int) -> None:
            super().__init__()
            self.pages = pages

    def __init__(self, send_keys: Sequence[str], newline_keys: Sequence[str], id: str | None = None) -> None:
        super().__init__(
            id=id, soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, max_checkpoints=200
        )
        self.completion = CompletionList(id="completion")
        self.refused: Callable[[str], bool] = lambda text: False  # whether it is known not to be sendable
        self._folder: str | None = None  # the folder of the name after the @, and its entries
        self._entries: list[Entry] = []
        self._listed = Event()  # the entries are known
        self._listed.set()
        self._recalled, self._back = "", 0  # the recalled text, and from how many messages ago
        self._refused: tuple[int, int] | None = None  # position of the @ whose list the user has closed
        self._send_keys, self._newline_keys = send_keys, newline_keys
        self.cursor_blink = False  # blinking needs a timer, and sends bytes over SSH

    def show_recipient(self, recipient: str, unusual: bool) -> None:
        """Show where the message goes. If that is `unusual`, also on a small screen."""
        self.border_title = Content(recipient)
        self.set_class(unusual, "-unusual")

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        if strip.text.isascii():
            return strip
        return Strip([Segment(skinless(text), style) for text, style, _ in strip], strip.cell_length)

    async def _on_key(self, event: Key) -> None:
        # Not priority bindings: those overtake characters typed just before.
        if await self._completes(event.key):
            pass
        elif event.key in self._send_keys:
            self._send()
        elif event.key in self._newline_keys:
            self.replace("\n", *self.selection)
        else:
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()

    @property
    def message(self) -> str:
        """The text that is sent: without empty lines around it."""
        return self.text.strip("\n")

    def _send(self) -> None:
        text = self.message
        if text.strip():
            if self.refused(text):
                return
            self.put("")
            self.post_message(self.Submitted(text))
        elif not self.text:
            self.post_message(self.Empty())

    # Completion of names after an @

    async def _completes(self, key: str) -> bool:
        """Handle a key of the completion list. Return whether it was one."""
        if key == "tab":  # the list may still be on its way
            self._offer()
            with suppress(TimeoutError):
                await wait_for(self._listed.wait(), _LISTING)
        if not self.completion.offers:
            return False
        match key:
            case "tab" | "enter":
                self._offer()  # include what was typed just before
                return self._take_offer()
            case "up" | "down":
                self.completion.move(1 if key == "down" else -1)
            case "escape":
                self._refused = self._at()
                self._offer()
            case _:
                return False
        return True

    def _at(self) -> tuple[int, int] | None:
        """The position of the @ of the name that ends at the cursor."""
        row, column = self.cursor_location
        found = typing(self.document.get_line(row)[:column])
        return (row, found.start) if found else None

    def _offer(self) -> None:
        row, column = self.cursor_location
        found = typing(self.document.get_line(row)[:column]) if self.selection.is_empty else None
        if found is None:
            self._refused = None
        offered = found is not None and self.has_focus and (row, found.start) != self._refused
        folder = folder_of(found.name) if found and offered else None
        if folder != self._folder:
            self._folder, self._entries = folder, []
            self._listed.set()
            if folder is not None:
                self._listed.clear()
                begin(self, partial(self._look_into, folder), group="completion", exclusive=True)
        self._show(tuple(offers(found.name, self._entries)) if found and offered else ())

    def _show(self, found: tuple[Offer, ...]) -> None:
        if bool(found) is not bool(self.completion.offers):
            self.post_message(HintsChanged())
        self.completion.show(found)

    @property
    def hints(self) -> Hints:
        """The keys of the completion list while it is open."""
        return _COMPLETION if self.completion.offers else ()

    async def _look_into(self, folder: str) -> None:
        """List a folder in a thread: a network folder may be slow or never answer."""
        found = await in_thread(lambda: entries(folder))
        if folder == self._folder:
            self._entries = found
            self._listed.set()
            self._offer()

    def _take_offer(self) -> bool:
        at, offer = self._at(), self.completion.offer
        if at is None or offer is None:
            return False
        self.replace(offer.insert, at, self.cursor_location)
        self._offer()
        return True

    def on_text_area_changed(self) -> None:
        self._offer()

    def on_text_area_selection_changed(self) -> None:
        self._offer()

    def on_blur(self, event: Blur) -> None:
        self._show(())

    def action_cursor_up(self, select: bool = False) -> None:
        first = self.navigator.is_first_wrapped_line(self.cursor_location)
        if first and not select and (back := self._recalled_from()) is not None:
            self.post_message(self.RecallRequested(back + 1))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        last = self.navigator.is_last_wrapped_line(self.cursor_location)
        if last and not select and (back := self._recalled_from()):
            self.post_message(self.RecallRequested(back - 1))
        else:
            super().action_cursor_down(select)

    def _recalled_from(self) -> int | None:
        """How many messages ago the text is from; 0 if empty, None if the user typed it."""
        if not self.text:
            return 0
        return self._back if self.text == self._recalled else None

    def recall(self, text: str, back: int) -> None:
        self.put(text)
        self._recalled, self._back = self.text, back

    def action_cursor_line_end(self, select: bool = False) -> None:
        if not select and self.cursor_location == self.document.end:
            self.post_message(self.ScrollRequested(0))
        super().action_cursor_line_end(select)

    def action_cursor_page_up(self) -> None:
        self.post_message(self.ScrollRequested(-1))

    def action_cursor_page_down(self) -> None:
        self.post_message(self.ScrollRequested(1))

    def put(self, text: str) -> None:
        """Replace the text and move the cursor to its end."""
        self.load_text(enterable(text))
        self.move_cursor(self.document.end)
        self._recalled, self._back = "", 0

    def give_back(self, text: str) -> None:
        """Return text that was not sent, before what has been typed since. It can be undone."""
        self.replace(enterable(text) + self.text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)
