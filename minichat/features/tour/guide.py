"""What a page of the tour can do: send messages, change the engine, and wait for events."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from engine.api.commands import SetQuantization
from engine.api.events import Event, Quantized, RequestEvent
from engine.api.snapshot import Snapshot
from minichat.features.chats import chats, replies
from minichat.features.feature import Context
from minichat.features.monitor import MonitorSide
from minichat.session.conversation import Conversation

_LOOK_EVERY = 0.02  # seconds
_LATE = 1.0  # seconds without an event after which that of a chat without a running reply cannot come
_ITSELF = -2  # for events that belong to no request
Kind = TypeVar("Kind", bound=Event)


class EndedEarlyError(Exception):
    """The replies that a page waits for have ended: perhaps the user has stopped them."""


class Guide:
    """`say` shows a sentence in the middle of a page; `back` returns the focus to the tour."""

    def __init__(self, context: Context, say: Callable[[str], None], back: Callable[[], object]) -> None:
        self.say = say
        self._context, self._back = context, back
        self.stories = count()  # the number of stories requested
        self._events: list[Event] = []  # since the page began
        self._arrived = asyncio.Event()
        self._glowing: Conversation | None = None
        self._asked = defaultdict[Conversation, set[str]](set)  # by pages; other messages are the user's
        context.signals.snapshot.connect(self._see_snapshot)
        context.signals.events.connect(self._see_events)

    def key(self, id: str) -> str:
        """The key of a command, as it is bound now."""
        return self._context.keys.name(id)

    def start_page(self) -> None:
        """Forget the events of the page before."""
        self._events.clear()

    def glow(self, chat: Conversation) -> None:
        """Highlight the blocks of this chat on the map from here on."""
        self._glowing = chat
        if self._context.engine.latest is not None:
            self._see_snapshot(self._context.engine.latest)

    def _see_snapshot(self, snapshot: Snapshot) -> None:
        if self._glowing is not None:
            newest = next(reversed(self._glowing.traces), -1)
            held = [block for each in snapshot.requests if each.id == newest for block in each.blocks]
            self._context.part(MonitorSide).kvmap.glow(held)

    def _see_events(self, events: Sequence[Event]) -> None:
        self._events += events
        self._arrived.set()

    async def ask(self, text: str, params: Mapping[str, Any], *, new: bool = False) -> Conversation:
        """Send a message in the active chat or a new one; return once the engine has accepted it."""
        if new or not self._free(self._context.chats.active):
            await chats.new(self._context)
            self._back()
        chat = self._context.chats.active
        await self._send(chat, text, params)
        return chat

    async def ask_all(self, texts: Sequence[str], params: Mapping[str, Any]) -> list[Conversation]:
        """Send each text in its own chat, all at once."""
        while len(open_chats := [*filter(self._free, self._context.chats)][: len(texts)]) < len(texts):
            await chats.new(self._context)
        self._back()
        await asyncio.gather(
            *(self._send(chat, text, params) for chat, text in zip(open_chats, texts, strict=True))
        )
        return open_chats

    def _free(self, chat: Conversation) -> bool:
        """Whether a page may restart the chat: the user has not written in it."""
        own = (message for message in chat.chat.messages if message.role == "user")
        return not chat.chat.earlier and all(message.text in self._asked[chat] for message in own)

    @property
    def has_own(self) -> bool:
        """Whether the user has written in a chat."""
        return not all(map(self._free, self._context.chats))

    async def _send(self, chat: Conversation, text: str, params: Mapping[str, Any]) -> None:
        self._asked[chat].add(text)
        chat.tune(chat.chat.params.changed(**params))
        own = [message for message in chat.chat.messages if message.role == "user"]
        if own:
            chat.edit(own[0].id)  # restart the chat, because earlier messages would take up context
        chat.send(text)
        while chat.run is not None and chat.run.reply is None:
            await asyncio.sleep(_LOOK_EVERY)

    async def fork(self, parent: Conversation) -> Conversation:
        self._context.workspace.go_to(parent)
        await chats.fork(self._context)
        self._back()
        child = self._context.chats.active
        self._asked[child] |= self._asked[parent]
        while child.run is not None and child.run.reply is None:
            await asyncio.sleep(_LOOK_EVERY)
        return child

    def tune(self, chat: Conversation, **changes: Any) -> None:
        chat.tune(chat.chat.params.changed(**changes))

    def hand_over(self, names: Iterable[str]) -> None:
        """Give the chats to the user: what the pages set is as in a new chat."""
        usual = self._context.program.start.params
        for chat in self._context.chats:
            self.tune(chat, **{name: getattr(usual, name) for name in names})

    def weights(self, scheme: str) -> int:
        """The size of the weights in that scheme, in bytes."""
        shot = self._context.engine.latest
        return next((each.nbytes for each in shot.schemes if each.name == scheme), 0) if shot else 0

    @property
    def reads_prefixes(self) -> bool:
        """Whether the prefix cache is on."""
        shot = self._context.engine.latest
        return not shot or all(each.on for each in shot.switches if each.name == "prefix_cache")

    @property
    def scheme(self) -> str:
        """The current scheme of the weights."""
        shot = self._context.engine.latest
        return shot.quantization if shot else ""

    async def quantize(self, scheme: str) -> Quantized:
        """Convert the weights; return when the conversion has ended."""
        await self._context.program.backend.send(SetQuantization(scheme))
        return await self.wait_for(Quantized)

    async def quiet(self) -> None:
        """Stop all replies of earlier pages."""
        self._glowing = None
        self._context.part(MonitorSide).kvmap.glow(())
        if self._context.chats.streaming:
            replies.stop_all(self._context)
        while self._context.chats.streaming:
            await asyncio.sleep(_LOOK_EVERY)
        self._events.clear()

    async def wait_for(self, kind: type[Kind] | tuple[type[Kind], ...], *of: Conversation) -> Kind:
        """Wait for an event of one of these chats' newest requests; an earlier one of this page counts.

        Without a chat: an event that belongs to no request. Raises EndedEarlyError once it cannot come.
        """
        while True:
            requests = {next(reversed(chat.traces), -1) for chat in of} or {_ITSELF}
            for event in self._events:
                request = event.request if isinstance(event, RequestEvent) else _ITSELF
                if isinstance(event, kind) and request in requests:
                    return event
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), _LATE)
                continue
            if of and not any(chat.streaming for chat in of):
                raise EndedEarlyError

    def prompt_tokens(self, chat: Conversation) -> int:
        return next(reversed(chat.traces.values())).prompt_tokens

    def chat_of(self, request: int) -> Conversation:
        return next(each for each in self._context.chats if request in each.traces)
