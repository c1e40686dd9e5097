"""A chat's messages as a widget. It draws by line and follows the end until the user scrolls up."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

from textual import events
from textual.geometry import Offset, Region
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.selection import SELECT_ALL, Selection
from textual.strip import Strip

from minichat.chats.model import Message
from minichat.ui.lines import Bar, lines_of
from minichat.ui.transcript import requests
from minichat.ui.transcript.bindings import HINTS, KEYS
from minichat.ui.transcript.caret import Caret
from minichat.ui.transcript.entry import Entry, EntryPart, Spot
from minichat.ui.transcript.glyphs import UNICODE, Glyphs
from minichat.ui.transcript.greeting import Greeting
from minichat.ui.transcript.highlights import HighlightKind, Spans, chosen_spans
from minichat.ui.transcript.markdown import highlight
from minichat.ui.transcript.markdown.canvas import Canvas
from minichat.ui.transcript.painter import PaintContext, Painter
from minichat.ui.transcript.palette import CSS, LOOKS, color, component
from minichat.ui.transcript.pointer import click_message, word_at_pointer
from minichat.ui.transcript.search import Search
from minichat.ui.transcript.selecting import selected
from minichat.ui.transcript.view import Place, View
from minichat.ui.transcript.window import Viewport, budget

_WIDTH = 80  # until the first layout


class Transcript(ScrollView, can_focus=True):
    """Messages from top to bottom. Selections are offsets in leaves, so they survive a resize."""

    DEFAULT_CSS = CSS
    COMPONENT_CLASSES: ClassVar[set[str]] = set(map(component, LOOKS))
    FOCUS_ON_CLICK = False  # the screen decides once it knows whether text was selected
    BINDINGS = KEYS
    HINTS = HINTS

    LinkClicked: TypeAlias = requests.LinkClicked
    RetryRequested: TypeAlias = requests.RetryRequested
    MessageMenu: TypeAlias = requests.MessageMenu
    SelectionChanged: TypeAlias = requests.SelectionChanged
    CopyRequested: TypeAlias = requests.CopyRequested
    TryChosen: TypeAlias = requests.TryChosen

    def __init__(self, glyphs: Glyphs = UNICODE, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        if glyphs.ascii:
            self.styles.scrollbar_size_vertical = 0  # its ends use block characters
        self.auto_links = False  # lines contain no Textual actions
        self._clock = clock
        self._canvas = Canvas(_WIDTH, glyphs, partial(color, self))
        self._view = View(self._canvas)
        self._painter = Painter(self._view, self._want)
        self.highlights = self._painter.highlights  # by kind
        self._caret = Caret(self._view)
        self._window = Viewport(self, self._view)
        self._search = Search(self._view, self._painter, self._window)
        self._frame: PaintContext | None = None  # only during rendering
        self._cursor: Entry | None = None  # the message chosen with the keys
        self._languages: set[str] = set()  # whose lexers were requested
        self._greeting = Greeting()

    # Calls from the chat

    def show(self, messages: Sequence[Message], letter: str) -> None:
        """Replace all messages."""
        self._select(None)
        self._cursor = None
        self._view.show(messages, letter)
        self._search.restart()
        self.follow()

    def greet(self, greeting: Greeting) -> None:
        """Set the greeting that is shown while there are no messages."""
        if greeting != self._greeting:
            self._greeting = greeting
            self.refresh()

    def name_keys(self, unfolds: str, retries: str) -> None:
        """Set the key that shows reasoning, and how failed replies offer a retry; empty: not at all."""
        if self._view.name_keys(unfolds, retries):
            self._window.stay(self._window.top)

    def set_letter(self, letter: str) -> None:
        """Set the chat's letter, which heads its replies."""
        if self._view.set_letter(letter):
            self.refresh()

    def prepend(self, messages: Sequence[Message]) -> None:
        """Insert older messages at the top; the view does not move."""
        before = self._view.total
        self._view.prepend(messages)
        self._window.lower(self._view.total - before)

    def append(self, message: Message) -> None:
        """Add a message at the end. A user's message makes the view follow the end."""
        self._view.append(message)
        if message.role == "user":
            self.follow()
        else:
            self._window.arrange(self._view.top(self._view.entries[-1]))

    def extend(self, text: str, tail: str = "", *, reasoning: bool = False, beams: bool = False) -> None:
        """Extend the last message, as in `Entry.extend`. The next call replaces the tail, which is dim."""
        entry = self._last("extend")
        changed = entry.extend(text, tail, self._clock(), budget(), reasoning=reasoning, beams=beams)
        self._view.changed(entry)
        self._window.arrange(self._view.top(entry) + changed)

    def settle(self, message: Message) -> None:
        """Update the last message: it has finished, failed or been stopped."""
        entry = self._last("settle")
        entry.settle(message, budget())
        self._view.changed(entry)
        self._window.arrange(self._view.top(entry))

    def last_reply(self) -> str:
        """The source text of the last reply that has any."""
        replies = (entry for entry in reversed(self._view.entries) if entry.message.role == "assistant")
        return next((entry.text for entry in replies if entry.text), "")

    @property
    def chosen(self) -> Message | None:
        """The message chosen with the keys."""
        return self._cursor.message if self._cursor is not None else None

    @property
    def busy(self) -> bool:
        """Whether text is still being parsed in slices."""
        return self._window.busy

    @property
    def following(self) -> bool:
        """Whether the view follows the end."""
        return self._window.following

    def _last(self, caller: str) -> Entry:
        if not self._view.entries:
            raise ValueError(f"{caller}() needs a message: append() one first")
        return self._view.entries[-1]

    # Scrolling

    def follow(self) -> None:
        """Scroll to the end and follow it."""
        self._window.following, self._window.revealed = True, False
        self._cursor_to(None)
        self._window.arrange(0)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._window.placing and self._view.entries:
            self._window.scrolled(round(new_value))

    def _scroll_to(self, x: float | None = None, y: float | None = None, **options: Any) -> bool:
        """Measure lines before they come into view, so that the text moves by the exact distance."""
        if y is not None and self._view.entries:
            y += self._window.prepare(y)
        return super()._scroll_to(x, y, **{**options, "animate": False})

    def scroll_end(self, **_options: Any) -> None:
        self.follow()

    def on_resize(self) -> None:
        self._search.resized()

    # Drawing

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = Bar(vertical=True, name="vertical", thickness=1)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    def render_lines(self, crop: Region) -> list[Strip]:
        window = self._window
        self._frame = PaintContext(window.top, window.height - 1, window.notice, self.text_selection)
        try:
            return lines_of(self, crop)
        finally:
            self._frame = None

    def render_line(self, y: int) -> Strip:
        if not self._view.entries:
            return self._canvas.paint(self._greeting.row(y, self.size.width, self._canvas.glyphs.cut))
        if (frame := self._frame) is None:  # the mouse asks for the character
            return self._painter.placed(self._window.top + y)
        if frame.notice and y == frame.last:
            return self._painter.notice(frame.notice)
        return self._painter.strip(frame.top + y, frame.selection)

    def _want(self, language: str) -> None:
        """Load a language's lexer in a thread, then redraw its code."""
        if language not in self._languages:
            self._languages.add(language)
            self.run_worker(partial(self._load, language), thread=True, group="lexers")

    def _load(self, language: str) -> None:
        highlight.load(language)
        self.app.call_from_thread(self._repaint)

    def _repaint(self) -> None:
        self._canvas.forget()
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._canvas.forget()

    # Selecting

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return (selected(self._view, selection), "\n") if self._view.entries else None

    def selection_updated(self, selection: Selection | None) -> None:
        if selection is None:
            self._caret.forget()
        self.refresh()
        self.post_message(self.SelectionChanged())

    def selected_spans(self) -> dict[int, list[tuple[int, int]]]:
        """The selected source offsets, by message."""
        selection = self.text_selection if self.is_attached else None
        return chosen_spans(self._view, selection) if selection is not None and self._view.entries else {}

    # Highlights

    def highlight(self, spans: Spans, kind: HighlightKind = "lit", *, show: bool = False) -> None:
        """Set the highlights of one kind; `show` scrolls to the first of them."""
        highlight = self.highlights[kind]
        if highlight.set(spans):
            self.refresh()
            if show and (place := highlight.first()):
                self._window.reveal(place)

    def _select(self, selection: Selection | None) -> None:
        if self.is_attached:
            self.screen.selections = {self: selection} if selection is not None else {}

    def _select_by(self, up: bool, move: Callable[[], None], moves_first: bool = True) -> None:
        top = self._window.top
        begun = self._caret.begin(top, top + self._window.height, up)
        if not begun or moves_first:
            move()
        else:
            self._caret.edge(-1 if up else 1)
        self._select(self._caret.selection)
        y, height = self._caret.y, self._window.height
        if not self._window.top <= y < self._window.top + height:
            self.scroll_to(y=y if up else y - height + 1)

    def action_select_lines(self, count: int) -> None:
        self._select_by(count < 0, partial(self._caret.lines, count), moves_first=False)

    def action_select_page(self, by: int) -> None:
        self._select_by(by < 0, partial(self._caret.lines, by * max(1, self._window.height - 1)))

    def action_select_characters(self, step: int) -> None:
        self._select_by(step < 0, partial(self._caret.characters, step))

    def action_select_edge(self, by: int) -> None:
        self._select_by(by < 0, partial(self._caret.edge, by))

    def action_select_everything(self) -> None:
        self._select(SELECT_ALL)

    def action_select_message(self) -> None:
        if (entry := self._current()) is not None:
            first, last = (Place(entry, Spot(part, 0, 0)).key for part in (EntryPart.HEAD, EntryPart.SPACE))
            self._select(Selection(Offset(0, first), Offset(0, last)))

    def action_copy(self) -> None:
        """Copy the selection, else the chosen message, else the last reply."""
        if chosen := self.text_selection:
            text = selected(self._view, chosen)
        else:
            text = self.last_reply() if self._cursor is None else self._cursor.text
        if text:
            self.post_message(self.CopyRequested(text))
        else:
            self.notify("There is nothing to copy", severity="warning")

    # Acting on messages

    def _current(self, fits: Callable[[Entry], bool] = bool, what: str = "message here") -> Entry | None:
        """The message a key acts on: the chosen one, else the last visible one that fits. Or a notice."""
        if self._cursor is not None and fits(self._cursor):
            return self._cursor
        top = self._window.top
        seen = reversed(list(self._view.between(top, top + self._window.height)))
        if (found := next(filter(fits, seen), None)) is None:
            self.notify(f"There is no {what}", severity="warning")
        return found

    def _cursor_to(self, entry: Entry | None) -> None:
        for each, chosen in ((self._cursor, False), (entry, True)):
            if each is not None:
                each.marked = chosen
        self._cursor = entry
        self.refresh()

    def action_follow(self) -> None:
        self.follow()

    def action_go(self, by: int) -> None:
        """Choose the next or previous message, which keys then act on."""
        if not self._view.entries:
            return
        index = self._view.index(self._cursor) + by if self._cursor else self._first_choice(by)
        if not 0 <= index < len(self._view.entries):
            return
        self._cursor_to(self._view.entries[index])
        y = self._view.top(self._view.entries[index])
        self.scroll_to(y=y)

    def _first_choice(self, by: int) -> int:
        """The message to choose first: next to the top one, or the top one itself if its start is cut off."""
        if by < 0 and self.following:
            return len(self._view.entries) - 1  # keys act on it already
        entry = self._view.place(self._window.top).entry
        whole = self._view.top(entry) == self._window.top
        return self._view.index(entry) + (by if whole or by > 0 else 0)

    def action_toggle_thought(self) -> None:
        if (entry := self._current(lambda each: bool(each.message.reasoning), "reasoning here")) is not None:
            self._window.fold(entry)

    def action_retry(self) -> None:
        if (entry := self._current(lambda each: each.retriable, "failed reply to retry now")) is not None:
            self.post_message(self.RetryRequested(entry.message.id))

    def action_menu(self) -> None:
        if (entry := self._current()) is not None:
            self.post_message(self.MessageMenu(entry.message.id))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if not self._view.entries:
            if text := self._greeting.tried(offset.y, self.size.width, self._canvas.glyphs.cut):
                self.post_message(self.TryChosen(text))
            return
        if event.chain > 1:
            event.prevent_default()  # Textual would select everything
        y = self._window.top + offset.y
        if offset.y == self._window.height - 1 and self._window.notice:
            self.follow()
        elif y < self._view.total and (event.chain > 1 or self.text_selection is None):
            place = self._view.place(y)
            if event.chain > 1:
                if word := word_at_pointer(self._painter, place, offset.x, whole=event.chain > 2):
                    self._select(word)
            elif place.spot.part == EntryPart.FOLD:
                self._window.fold(place.entry)
            elif (message := click_message(self._painter, place, offset.x)) is not None:
                self.post_message(message)

    # Search

    def find(self, text: str, message: int | None = None) -> bool:
        """Highlight a text and go to its first hit from a message or the top line on, if there is one."""
        found = self._search.begin(text, message)
        self.refresh()
        return found

    def find_next(self, by: int = 1) -> bool:
        """Go to the next hit, or with -1 to the previous one."""
        found = self._search.step(by)
        self.refresh()
        return found

    def clear_find(self) -> None:
        self._search.end()
        self.refresh()

    @property
    def find_count(self) -> tuple[int, int, bool]:
        """The current hit's number, the total, and whether the time allowed counting all."""
        return self._search.count

    def action_find_next(self, by: int) -> None:
        if not self.find_next(by):
            self.notify("There is no match to go to", severity="warning")
