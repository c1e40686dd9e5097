"""Leads through the tour on the real screen, with the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from textual.content import Content

from engine.commands import SetQuantization
from engine.errors import EngineError
from engine.events import Event, Quantized
from engine.snapshot import Snapshot
from minichat.conversation import Conversation
from minichat.screens import deeds
from minichat.tour import PAGES, SYSTEM, Page
from minichat.widgets.marks import ASCII
from minichat.widgets.tour import TourPanel

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen

KEEP = 65  # the exit code that says that the chats are wanted
_LOOK_EVERY = 0.02  # seconds
_ITSELF = -2  # no request's number
Kind = TypeVar("Kind", bound=Event)


class Guide:
    """A page is begun once; going back shows again what was said then."""

    def __init__(self, main: MainScreen) -> None:
        self._main, self._panel = main, TourPanel(self.turn, self.leave)
        self._place = 0
        self._told = [""] * len(PAGES)  # what was seen, by page
        self._begun = 0  # the page that was reached
        self._events: list[Event] = []
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._glowing: Conversation | None = None

    def turn(self, by: int) -> None:
        """To another page. On the way forward it does not wait for one that is not done."""
        place = min(max(self._place + by, 0), len(PAGES) - 1)
        self._place = place
        if place > self._begun:
            self._begun = place
            self._stop()
            self._task = asyncio.create_task(self._do(place), name="tour")
        self._show()

    async def begin(self) -> None:
        """As soon as there is an engine."""
        main = self._main
        await main.program.keeper.ready.wait()
        if main.program.start.ascii:
            self._panel.marks = ASCII
        await main.mount(self._panel, before=main.prompt)
        main.onlookers.append(self)
        main.chats.system = SYSTEM  # of those that the pages open
        main.chats.active.instruct(SYSTEM)
        self._show()
        self._panel.focus()

    def leave(self, keep: bool) -> None:
        self._stop()
        self._main.program.leave(KEEP if keep else 0)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _do(self, place: int) -> None:
        page = PAGES[place]
        self._events.clear()
        if page.do is not None:
            try:
                self._tell(place, await page.do(self))
            except EngineError as error:
                self._tell(place, f"That did not work: {error}")

    def _tell(self, place: int, sentence: str) -> None:
        self._told[place] = sentence
        self._show()

    # What is seen

    def _show(self) -> None:
        page, told = PAGES[self._place], self._told[self._place]
        lines = [
            Content.assemble(
                (page.title, "bold $text-accent"), (f"  {self._place + 1}/{len(PAGES)}", "$text-muted")
            ),
            Content(page.text),
        ]
        if told:
            lines.append(Content.styled(told, "bold"))
        elif page.do is not None:
            alive = self._main.program.keeper.alive
            words = "waiting for the engine ..." if alive else "There is no engine; why is said at the top."
            lines.append(Content.styled(words, "italic $text-muted"))
        self._panel.say(Content("\n").join(lines), self._keys(page), end=bool(told))

    def _keys(self, page: Page) -> Content:
        keys = [("Enter", "next"), ("b", "back"), ("q", "quit")]
        if page.last:
            keys = [("b", "back"), ("k", "keep chats"), ("q", "quit")]
        elif not self._place:
            keys.pop(1)
        return Content.assemble(
            *(
                part
                for key, what in keys
                for part in ((key, "bold $text-accent"), (f" {what}  ", "$text-muted"))
            )
        )

    def say(self, sentence: str) -> None:
        """In the middle of a page."""
        self._tell(self._begun, sentence)

    def glow(self, chat: Conversation) -> None:
        """Its blocks stand out on the map from here on."""
        self._glowing = chat
        if self._main.latest is not None:
            self.see_snapshot(self._main.latest)

    def see_snapshot(self, snapshot: Snapshot) -> None:
        if self._glowing is not None:
            newest = next(reversed(self._glowing.traces), -1)
            held = [block for each in snapshot.requests if each.id == newest for block in each.blocks]
            self._main.monitor.kvmap.glow(held)

    def see_events(self, events: Sequence[Event]) -> None:
        self._events += events
        self._came.set()

    # For the pages

    async def ask(self, text: str, params: Mapping[str, Any], *, new: bool = False) -> Conversation:
        """The active chat asks, or a new one; returns once the engine has taken it."""
        if new:
            await deeds.new(self._main)
            self._panel.focus()
        chat = self._main.chats.active
        await self._send(chat, text, params)
        return chat

    async def ask_all(self, texts: Sequence[str], params: Mapping[str, Any]) -> list[Conversation]:
        """As many chats as there are texts, all at once."""
        while len(self._main.chats) < len(texts):
            await deeds.new(self._main)
        self._panel.focus()
        chats = list(self._main.chats)[: len(texts)]
        await asyncio.gather(
            *(self._send(chat, text, params) for chat, text in zip(chats, texts, strict=True))
        )
        return chats

    async def _send(self, chat: Conversation, text: str, params: Mapping[str, Any]) -> None:
        chat.tune(chat.chat.params.changed(**params))
        own = [message for message in chat.chat.messages if message.role == "user"]
        if own:
            chat.edit(own[0].id)  # the chat begins anew: what was said before would take room
        chat.send(text)
        while chat.run is not None and chat.run.reply is None:
            await asyncio.sleep(_LOOK_EVERY)

    async def fork(self, parent: Conversation) -> Conversation:
        self._main.go_to(parent)
        await deeds.fork(self._main)
        self._panel.focus()
        child = self._main.chats.active
        while child.run is not None and child.run.reply is None:
            await asyncio.sleep(_LOOK_EVERY)
        return child

    def tune(self, chat: Conversation, **changes: Any) -> None:
        chat.tune(chat.chat.params.changed(**changes))

    def weights(self, scheme: str) -> int:
        """What they take in that scheme, in bytes."""
        shot = self._main.latest
        return next((each.nbytes for each in shot.schemes if each.name == scheme), 0) if shot else 0

    async def quantize(self, scheme: str) -> Quantized:
        """The weights of the whole engine; returns when the way is over."""
        await self._main.program.backend.send(SetQuantization(scheme))
        return await self.heard(Quantized)

    async def quiet(self) -> None:
        """All replies of the page before end here."""
        self._glowing = None
        self._main.monitor.kvmap.glow(())
        self._main.action_stop_all()
        while self._main.chats.streaming:
            await asyncio.sleep(_LOOK_EVERY)
        self._events.clear()

    async def heard(self, kind: type[Kind] | tuple[type[Kind], ...], *chats: Conversation) -> Kind:
        """What the engine says of one of these chats' newest requests: now, or before on this page.

        Without a chat: what it says of itself.
        """
        while True:
            requests = {next(reversed(chat.traces), -1) for chat in chats} or {_ITSELF}
            for event in self._events:
                if isinstance(event, kind) and getattr(event, "request", _ITSELF) in requests:
                    return event
            self._came.clear()
            await self._came.wait()

    def prompt_tokens(self, chat: Conversation) -> int:
        return next(reversed(chat.traces.values())).prompt_tokens

    def chat_of(self, request: int) -> Conversation:
        return next(each for each in self._main.chats if request in each.traces)
