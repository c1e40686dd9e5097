"""Ctrl+O: all chats, to go to or delete. The text typed is searched for in every message.

A message that was found is shown with the match marked, in the bar of Ctrl+F.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList

from minichat.chats.model import ChatLine
from minichat.chats.search import SearchHit
from minichat.features.chats.chats import DELETE_KEY, ask_to_delete, reopen
from minichat.features.chats.find import find
from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.plural import plural
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.marks import ASCII, UNICODE
from minichat.ui.monitor import figures
from minichat.ui.monitor.figures import day
from minichat.ui.panes.tabs import cut_title
from minichat.ui.transcript.glyphs import one_line

_LISTED, _FOUND = 200, 50
_TITLE = 40  # cells of a title
_LINE = 59  # cells of a title and the note beside it, where the list has a scroll bar
_HIT_TITLE, _HIT_BEFORE = 20, 8  # cells of a title, and letters before the match, which stays visible
_AT_ONCE, _PAUSE = 0.03, 0.001  # seconds of a search before it goes on between keys, and of each pause
_DELETE = "chat.delete"


class Target(NamedTuple):
    """A chat, and the message and the text in it that were found."""

    chat: int
    message: int | None = None
    text: str = ""


class JumpScreen(PickScreen[Target]):
    """Lists open chats first. Returns where to go."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding(DELETE_KEY, "delete", show=False, id=_DELETE)]

    def __init__(self, context: Context) -> None:
        super().__init__("Go to a chat", self._fitting, "search titles and messages")
        self.context, self._store = context, context.chats.services.store
        self._cut = (ASCII if context.program.start.ascii else UNICODE).ellipsis
        self._dated_at = figures.wall_clock()
        self._searching = self._goes = False  # whether a search still runs; whether Enter waits for its end

    def on_mount(self) -> None:
        key = self.context.keys.name(_DELETE)
        self.query_one(".sheet").border_subtitle = f"Enter go  {key} delete  Esc cancel"
        self.set_interval(figures.CALENDAR_EVERY, self._look_at_calendar)

    def _look_at_calendar(self) -> None:
        """Chats of today have a time, no date. The highlighted one stays the same."""
        if not day(self._dated_at):
            return
        self._dated_at = figures.wall_clock()
        options = self.query_one(OptionList)
        chosen = self.choice(options.highlighted_option)
        self._list(self.query_one(Input).value)
        for index, option in enumerate(options.options):
            if chosen is not None and (now := self.choice(option)) is not None and now.value == chosen.value:
                options.highlighted = index

    def action_delete(self) -> None:
        chosen = self.choice(self.query_one(OptionList).highlighted_option)
        if chosen is not None:
            chat = self._store.chat(chosen.value.chat)
            ask_to_delete(self.context, chat, lambda: self._list(self.query_one(Input).value))

    def on_input_submitted(self) -> None:
        """Go to the chosen one; if none is found yet, to the first one, once there is one."""
        if self._searching and not self._choices:
            self._goes = True
        else:
            super().on_input_submitted()

    def _fitting(self, query: str) -> list[Choice[Target]]:
        self.workers.cancel_node(self)  # an earlier search
        self._searching = self._goes = False
        self.say("")
        if query.strip():
            pieces, until = self._store.searching(query, _FOUND + 1), time.monotonic() + _AT_ONCE
            hits: list[SearchHit] = []
            for hits in pieces:
                if time.monotonic() > until:
                    self._searching = True
                    self.run_worker(self._go_on(pieces, hits))
                    self.say("Searching ...")
                    break
            else:
                self._say_how_many(hits)
            return self._choices_of(hits)
        lines = self._store.listing(_LISTED + 1)
        if len(lines) > _LISTED:
            self.say(f"These are the newest {_LISTED}. Type to find others")
        lines = sorted(lines[:_LISTED], key=lambda each: each.closed_at is not None)
        letters = [self._letter(each.id) for each in lines]
        return [
            self._choice(Target(each.id), letter, each.title, _note(each))
            for letter, each in zip(letters, lines, strict=True)
        ]

    async def _go_on(self, pieces: Iterator[list[SearchHit]], hits: list[SearchHit]) -> None:
        """Search the rest of a long history between the keys."""
        options = self.query_one(OptionList)
        for found in pieces:
            if len(found) > len(hits):  # further ones, below those
                hits, chosen = found, options.highlighted
                self._offer(self._choices_of(hits))
                options.highlighted = chosen or 0
            if self._goes and hits:
                break
            await asyncio.sleep(_PAUSE)
        self._searching = False
        self._say_how_many(hits)
        if self._goes:
            super().on_input_submitted()

    def _say_how_many(self, hits: list[SearchHit]) -> None:
        more = f"These are the newest {_FOUND}. Type more to find others" if len(hits) > _FOUND else ""
        self.say(more if hits else "No title or message matches")

    def _choices_of(self, hits: list[SearchHit]) -> list[Choice[Target]]:
        return [
            self._choice(
                Target(hit.chat, hit.message, hit.found),
                self._letter(hit.chat),
                hit.title,
                *self._excerpt(hit),
            )
            for hit in hits[:_FOUND]
        ]

    def _letter(self, chat_id: int) -> str:
        """The letter of an open chat."""
        conversation = self.context.chats.of(chat_id)
        return conversation.chat.letter if conversation is not None else ""

    def _excerpt(self, hit: SearchHit) -> tuple[Content, int]:
        """The matching line from a little before the match, and the cells for the title beside it."""
        if hit.message is None:
            return Content(""), _TITLE
        start = max(min((start for start, _ in hit.marks), default=0) - _HIT_BEFORE, 0)
        text = Content(one_line(hit.snippet))
        for mark in hit.marks:
            text = text.stylize("underline", *mark)
        return (self._cut + text[start:] if start else text), min(_HIT_TITLE, self.app.size.width // 4)

    def _choice(
        self, target: Target, letter: str, title: str, note: Content, cells: int = _TITLE
    ) -> Choice[Target]:
        label = cut_title(title, min(cells, max(_LINE - note.cell_length, _HIT_TITLE)), self._cut)
        head = (f" {letter.upper():2} ", "bold")
        return Choice(Content.assemble(head, " ", label, "  ", note.stylize_before("$text-muted")), target)


def _note(line: ChatLine) -> Content:
    """How long a chat is and when its last message was sent, or when it was closed."""
    at = line.closed_at or line.spoken_at
    when = day(at) or time.strftime("%H:%M", time.localtime(at))
    return Content(f"{'closed' if line.closed_at else plural(line.messages, 'message')}  {when}")


def jump(context: Context) -> None:
    async def take(target: Target | None) -> None:
        if target is None:
            return
        if conversation := context.chats.of(target.chat):
            context.workspace.go_to(conversation)
        else:
            await reopen(context, target.chat)
        if target.message is not None:
            find(context, target.text, target.message)

    context.app.push_screen(JumpScreen(context), take)


JUMP = Feature(
    name="jump",
    title="All chats",
    commands=(
        ScreenCommand(
            "chat.jump",
            "Chats",
            "Go to a chat, or search in all",
            jump,
            "ctrl+o",
            "jump",
            also="history find",
        ),
    ),
)
