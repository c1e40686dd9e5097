"""One chat as a widget that draws line by line: it follows the end of a reply until the reader scrolls up."""

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
from minichat.ui.transcript.lit import Spans, Way, chosen_spans
from minichat.ui.transcript.markdown import highlight
from minichat.ui.transcript.markdown.canvas import Canvas
from minichat.ui.transcript.painter import PaintContext, Painter
from minichat.ui.transcript.palette import CSS, LOOKS, colour, component
from minichat.ui.transcript.pointer import asked_at, word_at_pointer
from minichat.ui.transcript.search import Search
from minichat.ui.transcript.selecting import selected
from minichat.ui.transcript.view import Place, View
from minichat.ui.transcript.window import Viewport, budget

_WIDTH = 80  # until the screen has given one


class Transcript(ScrollView, can_focus=True):
    """Messages from top to bottom. Selections count in characters of leaves, so they outlive a resize."""

    DEFAULT_CSS = CSS
    COMPONENT_CLASSES: ClassVar[set[str]] = set(map(component, LOOKS))
    BINDINGS = KEYS
    HINTS = HINTS

    LinkClicked: TypeAlias = requests.LinkClicked
    RetryRequested: TypeAlias = requests.RetryRequested
    MessageMenu: TypeAlias = requests.MessageMenu
    SelectionChanged: TypeAlias = requests.SelectionChanged
    CopyRequested: TypeAlias = requests.CopyRequested
    TryChosen: TypeAlias = requests.TryChosen

    def __init__(
        self,
        glyphs: Glyphs = UNICODE,
        *,
        clock: Callable[[], float] = time.monotonic,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        if glyphs.ascii:
            self.styles.scrollbar_size_vertical = 0  # its ends are drawn with blocks
        self.auto_links = False  # no line has actions in it to look for
        self._clock = clock
        self._canvas = Canvas(_WIDTH, glyphs, partial(colour, self))
        self._view = View(self._canvas)
        self._painter = Painter(self._view, self._want)
        self._caret = Caret(self._view)
        self._window = Viewport(self, self._view)
        self._search = Search(self._view, self._painter, self._window)
        self._frame: PaintContext | None = None  # while it is drawn
        self._cursor: Entry | None = None  # the message that keys act on, where the reader chose one
        self._languages: set[str] = set()  # whose lexers were asked for
        self._greeting = Greeting()

    # What a chat tells

    def show(self, messages: Sequence[Message], letter: str) -> None:
        """These messages and no others."""
        self._select(None)
        self._cursor = None
        self._view.show(messages, letter)
        self._search.restart()
        self.follow()

    def greet(self, greeting: Greeting) -> None:
        """What stands here until anything is said."""
        if greeting != self._greeting:
            self._greeting = greeting
            self.refresh()

    def prepend(self, messages: Sequence[Message]) -> None:
        """Older messages, above those that are shown; what is in view stays where it is."""
        before = self._view.total
        self._view.prepend(messages)
        self._window.lower(self._view.total - before)

    def append(self, message: Message) -> None:
        """A new message at the end. A person's own is followed, wherever they were reading."""
        self._view.append(message)
        if message.role == "user":
            self.follow()
        else:
            self._window.arrange(self._view.top(self._view.entries[-1]))

    def extend(self, text: str, tail: str = "") -> None:
        """More of the last message. The tail may still change: it is dim, and the next call replaces it."""
        entry = self._last("extend")
        line = self._view.top(entry) + entry.extend(text, tail, self._clock(), budget())
        self._view.changed(entry)
        self._window.arrange(line)

    def settle(self, message: Message) -> None:
        """The last message is finished, or failed, or was stopped."""
        entry = self._last("settle")
        entry.settle(message, budget())
        self._view.changed(entry)
        self._window.arrange(self._view.top(entry))

    def last_reply(self) -> str:
        """The newest reply that has any text, as the model wrote it."""
        replies = (entry for entry in reversed(self._view.entries) if entry.message.role == "assistant")
        return next((entry.text for entry in replies if entry.text), "")

    @property
    def chosen(self) -> Message | None:
        """The message that the reader has gone to."""
        return self._cursor.message if self._cursor is not None else None

    @property
    def busy(self) -> bool:
        """Whether text is still being read in slices."""
        return self._window.busy

    @property
    def following(self) -> bool:
        """Whether the end is in view and stays so."""
        return self._window.following

    def _last(self, wanted: str) -> Entry:
        if not self._view.entries:
            raise ValueError(f"{wanted}() needs a message to work on: append() one first")
        return self._view.entries[-1]

    # Where the view is

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._window.following = True
        self._cursor_to(None)
        self._window.arrange(0)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._window.placing and self._view.entries:
            self._window.scrolled(round(new_value))

    def _scroll_to(self, x: float | None = None, y: float | None = None, **options: Any) -> bool:
        """Text moves by exactly what was asked for: what comes into view is measured before it does."""
        if y is not None and self._view.entries:
            y += self._window.prepare(y)
        return super()._scroll_to(x, y, **{**options, "animate": False})

    def scroll_end(self, **_options: Any) -> None:
        self.follow()

    def on_resize(self) -> None:
        self._window.resized()

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
        self._frame = PaintContext(window.top, window.height - 1, self._notice(), self.text_selection)
        try:
            return lines_of(self, crop)
        finally:
            self._frame = None

    def render_line(self, y: int) -> Strip:
        if not self._view.entries:
            return self._canvas.paint(self._greeting.row(y, self.size.width, self._canvas.glyphs.cut))
        if (frame := self._frame) is None:  # the pointer asks which character is there
            return self._painter.placed(self._window.top + y)
        if frame.notice and y == frame.last:
            return self._painter.notice(frame.notice)
        return self._painter.strip(frame.top + y, frame.selection)

    def _notice(self) -> str:
        """What the reader should know who does not see the end."""
        new = self._window.unseen
        lines = f"{new:,} new line{'s' * (new != 1)}"
        return f"-- {self._canvas.glyphs.below} {lines}, End to follow --" if new else ""

    def _want(self, language: str) -> None:
        """Have a language's lexer loaded by a thread, and the code in its colours once it is there."""
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
        """By message: the characters of its text that are selected."""
        selection = self.text_selection
        return chosen_spans(self._view, selection) if selection is not None and self._view.entries else {}

    # What is picked out from outside

    def light(self, spans: Spans, way: Way = "lit", *, show: bool = False) -> None:
        """Light these characters and no others in a way; `show` brings the first of them into view."""
        lit = self._painter.lit[way]
        if lit.set(spans):
            self.refresh()
            if show and (place := lit.first()):
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
        """The selection; without one, the last reply."""
        chosen = self.text_selection
        if text := selected(self._view, chosen) if chosen is not None else self.last_reply():
            self.post_message(self.CopyRequested(text))

    # Acting on messages

    def _current(self, fits: Callable[[Entry], bool] = lambda _: True) -> Entry | None:
        """The message that a key means: the chosen one, else the last in view that it can be done to."""
        if self._cursor is not None and fits(self._cursor):
            return self._cursor
        top = self._window.top
        return next(filter(fits, reversed(list(self._view.between(top, top + self._window.height)))), None)

    def _cursor_to(self, entry: Entry | None) -> None:
        for each, chosen in ((self._cursor, False), (entry, True)):
            if each is not None:
                each.marked = chosen
        self._cursor = entry
        self.refresh()

    def action_follow(self) -> None:
        self.follow()

    def action_go(self, by: int) -> None:
        """To the next message, or the one before: it is marked, and keys act on it."""
        if not self._view.entries:
            return
        index = self._view.index(self._cursor) + by if self._cursor else self._first_choice(by)
        if not 0 <= index < len(self._view.entries):
            return
        self._cursor_to(self._view.entries[index])
        y = self._view.top(self._view.entries[index])
        self.scroll_to(y=y)

    def _first_choice(self, by: int) -> int:
        """The message at the top of the view; where that is cut off, going up means its own beginning."""
        entry = self._view.place(self._window.top).entry
        whole = self._view.top(entry) == self._window.top
        return self._view.index(entry) + (by if whole or by > 0 else 0)

    def action_toggle_thought(self) -> None:
        if (entry := self._current(lambda each: bool(each.message.reasoning))) is not None:
            self._toggle(entry)

    def action_retry(self) -> None:
        if (entry := self._current(lambda each: each.message.retriable)) is not None:
            self.post_message(self.RetryRequested(entry.message.id))

    def action_menu(self) -> None:
        if (entry := self._current()) is not None:
            self.post_message(self.MessageMenu(entry.message.id))

    def _toggle(self, entry: Entry) -> None:
        """Show or hide a message's reasoning; the line with its length stays where it is."""
        entry.open(budget())
        y = self._view.top(entry) + entry.part_top(EntryPart.FOLD)
        if self._window.top <= y:
            self._window.leave()
        entry.toggle()
        self._view.changed(entry)
        self._window.stay(self._window.top)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if not self._view.entries:
            if text := self._greeting.tried(offset.y, self.size.width, self._canvas.glyphs.cut):
                self.post_message(self.TryChosen(text))
            return
        if event.chain > 1:
            event.prevent_default()  # which would select all there is
        y = self._window.top + offset.y
        if offset.y == self._window.height - 1 and self._notice():
            self.follow()
        elif y < self._view.total and (event.chain > 1 or self.text_selection is None):
            place = self._view.place(y)
            if event.chain > 1:
                if word := word_at_pointer(self._painter, place, offset.x, whole=event.chain > 2):
                    self._select(word)
            elif place.spot.part == EntryPart.FOLD:
                self._toggle(place.entry)
            elif (wanted := asked_at(self._painter, place, offset.x)) is not None:
                self.post_message(wanted)

    # Finding

    def find(self, text: str) -> bool:
        """Highlight a text everywhere and go to it, onward from the first line in view. False: nowhere."""
        found = self._search.begin(text)
        self.refresh()
        return found

    def find_next(self, by: int = 1) -> bool:
        """To the next place, or with -1 the one before."""
        found = self._search.step(by)
        self.refresh()
        return found

    def clear_find(self) -> None:
        self._search.end()
        self.refresh()

    @property
    def find_count(self) -> tuple[int, int, bool]:
        """Which place this is, of how many, and whether there was time to count them all."""
        return self._search.count

    def action_find_next(self, by: int) -> None:
        self.find_next(by)
