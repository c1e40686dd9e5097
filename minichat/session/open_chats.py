"""The chats on the screen: their order, which one is spoken to, and which stand beside it."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from engine.api.params import SamplingParams
from minichat.chats.errors import ChatGone, StoreError
from minichat.chats.model import Chat, Message
from minichat.chats.queries import PAGE
from minichat.session.conversation import Conversation
from minichat.session.desk import Desk
from minichat.shell.remembered import Remembered


class OpenChats:
    """There is always at least one, and one of them is active."""

    def __init__(
        self,
        desk: Desk[Conversation],
        defaults: SamplingParams,
        system: str = "",
        stood: Sequence[int] = (),
        active: int = 0,
        pinned: Collection[int] = (),
    ) -> None:
        """`stood`: chats in the order of their tabs when the screen was left; others come after them."""
        self.desk, self.defaults, self.system = desk, defaults, system
        self.first_ever = not desk.store.listing(1)
        places = {chat: place for place, chat in enumerate(stood)}
        opened = sorted(desk.store.open_chats(), key=lambda chat: places.get(chat.id, len(places)))
        self._all: list[Conversation] = [Conversation(chat, desk) for chat in opened]
        if not self._all:
            self._all.append(Conversation(self._made(), desk))
        self.pinned = {each for each in self._all if each.chat.id in pinned}
        self._pinned_first()
        self.active = self.of(active) or self._all[-1]
        self._first = 0  # of those that are shown
        self._behind: set[int] = set()  # chats in which another screen may have written

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def index(self) -> int:
        return self._all.index(self.active)

    @property
    def streaming(self) -> list[Conversation]:
        return [each for each in self._all if each.streaming]

    def shown(self, room: int) -> list[Conversation]:
        """The active chat and its neighbours, as many as there is room for; they move no more than needed."""
        last = max(len(self._all) - room, 0)
        self._first = min(max(self._first, self.index - room + 1), self.index, last)
        return self._all[self._first : self._first + room]

    def of(self, chat_id: int) -> Conversation | None:
        return next((each for each in self._all if each.chat.id == chat_id), None)

    def new(self) -> Conversation:
        """A chat that nothing was said in, after all others."""
        return self._add(self._made(), len(self._all))

    def fork(self, message_id: int) -> Conversation:
        """The active chat up to the message, beside it."""
        return self._add(self.desk.store.fork(self.active.chat.id, message_id), self.index + 1)

    def spread(self, conversation: Conversation, others: list[Message]) -> None:
        """Forks of a chat that end with another reply each, behind it in their order."""
        if conversation not in self._all:  # it was closed
            return
        index = self._all.index(conversation)
        for place, other in enumerate(others, start=index + 1):
            chat = self.desk.store.fork(conversation.chat.id, other.id)
            chat.messages[-1] = replace(other, id=chat.messages[-1].id)
            self.desk.store.update(chat.messages[-1])
            self._all.insert(place, Conversation(chat, self.desk))
        self._pinned_first()

    def pin(self, conversation: Conversation, on: bool) -> None:
        """Pinned chats stand before the others."""
        (self.pinned.add if on else self.pinned.discard)(conversation)
        self._pinned_first()

    def _pinned_first(self) -> None:
        self._all.sort(key=lambda each: each not in self.pinned)

    def reopen(self, chat_id: int | None = None) -> Conversation | None:
        chat = self.desk.store.reopen_chat(chat_id)
        return self._add(chat, len(self._all)) if chat else None

    async def close(self, conversation: Conversation) -> bool:
        """It leaves the screen; the store keeps it, unless another screen has deleted it, which is told."""
        await conversation.put_away()
        try:
            self.desk.store.close_chat(conversation.chat.id)
        except ChatGone:
            kept = False
        else:
            kept = True
        self._take_away(conversation)
        return kept

    async def delete(self, conversation: Conversation) -> None:
        """It leaves the screen and the store."""
        await conversation.put_away()
        self.desk.store.delete_chat(conversation.chat.id)
        self._take_away(conversation)

    def catch_up(self) -> None:
        """Takes in what other screens have written; where a reply runs, once it has ended."""
        if self.desk.store.changed():
            self._behind = {each.chat.id for each in self._all}
        for each in self._all:
            if each.chat.id in self._behind and not each.streaming:
                self._behind.remove(each.chat.id)
                with suppress(ChatGone):  # which is told when something is to be written to it
                    self._reread(each)

    def remember(self, file: Path) -> None:
        """How they stand, at once: a screen that is killed has no time for it."""
        pinned = [each.chat.id for each in self._all if each in self.pinned]
        stand = [each.chat.id for each in self._all]
        Remembered.read(file).left(stand, self.active.chat.id, pinned).write(file)

    async def resume(self) -> None:
        """What earlier screens began is read on, where the engine has outlived them."""
        await asyncio.gather(*(each.resume() for each in self._all))

    async def put_away(self) -> None:
        """The end of the program: every reply is saved where it is, and stops unless the engine goes on."""
        await asyncio.gather(*(each.leave() for each in self._all))
        for each in self._all:
            with suppress(StoreError):  # nobody is left to be told
                self.desk.store.change_chat(each.chat.id, draft=each.chat.draft)

    def _reread(self, conversation: Conversation) -> None:
        chat = conversation.chat
        now = self.desk.store.chat(chat.id, max(PAGE, len(chat.messages)))
        heading = (now.title, now.system, now.params)
        if heading != (chat.title, chat.system, chat.params):
            chat.title, chat.system, chat.params = heading
            self.desk.changed(conversation)
        if now.messages != chat.messages:
            chat.messages, chat.earlier = now.messages, now.earlier
            if conversation.view is not None:
                conversation.view.show_messages()

    def _take_away(self, conversation: Conversation) -> None:
        """The last one gives way to a new one."""
        index = self._all.index(conversation)
        self._all.remove(conversation)
        self.pinned.discard(conversation)
        if not self._all:
            self._all.append(Conversation(self._made(), self.desk))
        if self.active is conversation:
            self.active = self._all[min(index, len(self._all) - 1)]

    def _made(self) -> Chat:
        return self.desk.store.create_chat("", self.system, self.defaults)

    def _add(self, chat: Chat, index: int) -> Conversation:
        conversation = Conversation(chat, self.desk)
        self._all.insert(index, conversation)
        self._pinned_first()
        self.active = conversation
        return conversation
