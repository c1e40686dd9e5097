"""The open chats: their order, the active one, and those shown beside it."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from engine.api.params import SamplingParams
from engine.api.snapshot import RequestView, Snapshot
from minichat.chats.errors import ChatChanged, ChatGone
from minichat.chats.letters import free_letter
from minichat.chats.model import Chat, Edit, Message
from minichat.chats.queries import PAGE
from minichat.session.branching import take
from minichat.session.conversation import Conversation
from minichat.session.run import ConversationView
from minichat.session.services import ChatServices
from minichat.shell.remembered import Remembered


class OpenChats:
    """At least one chat is open, and one of them is active."""

    def __init__(
        self,
        services: ChatServices[Conversation],
        defaults: SamplingParams,
        system: str = "",
        order: Sequence[int] = (),
        active: int = 0,
        pinned: Collection[int] = (),
        unread: Collection[int] = (),
    ) -> None:
        """`order` holds the chats in the tab order of the last session; others follow."""
        self.services, self.defaults, self.system = services, defaults, system
        self.first_ever = not services.store.listing(1)
        places = {chat: place for place, chat in enumerate(order)}
        opened = sorted(services.store.open_chats(), key=lambda chat: places.get(chat.id, len(places)))
        self._all: list[Conversation] = [Conversation(chat, services) for chat in opened]
        for each in self._all:
            each.unread = each.chat.id in unread
        if not self._all:
            self._all.append(Conversation(self._made(), services))
        services.store.shown = lambda: {each.chat.letter for each in self._all}
        self._unread = {each.chat.id: each.unread for each in self._all}  # as remembered here
        self._shown: list[Conversation] = []
        self._pinned = set(pinned)  # ids; closed chats keep their pins
        # By chat, the message that its last samples answer, and the forks with them: their replies by chat.
        self._samples: dict[int, tuple[int, dict[int, int]]] = {}
        self._turned: dict[int, bool] = {}  # those that were pinned or unpinned here and are not saved
        self._pinned_first()
        self.active = self.of(active) or self._all[-1]
        self._first = 0  # index of the first visible chat
        self._behind: set[int] = set()  # chats that another screen may have changed
        self._may_lack = False  # whether another screen may have opened chats

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

    @property
    def running(self) -> str:
        """The replies that an engine has taken, in words; empty if there is none."""
        count = sum(each.run is not None and each.run.reply is not None for each in self._all)
        return f"{count} replies are running" if count > 1 else "A reply is running" if count else ""

    def see_snapshot(self, snapshot: Snapshot) -> None:
        """Tell each running reply which blocks it holds, over all requests of its group."""
        rows: dict[int, list[RequestView]] = {}
        for view in snapshot.requests:
            rows.setdefault(view.id if view.group < 0 else view.group, []).append(view)
        for run in (each.run for each in self._all):
            if run is not None and run.reply is not None:
                run.see(rows.get(run.reply.id, ()))

    def shown(self, room: int) -> list[Conversation]:
        """The active chat and as many neighbors as fit; the window moves no more than needed."""
        last = max(len(self._all) - room, 0)
        self._first = min(max(self._first, self.index - room + 1), self.index, last)
        self._shown = self._all[self._first : self._first + room]
        return self._shown

    def of(self, chat_id: int) -> Conversation | None:
        return next((each for each in self._all if each.chat.id == chat_id), None)

    def new(self) -> Conversation:
        """Add an empty chat at the end."""
        return self._add(self._made(), len(self._all))

    def fork(self, message_id: int, source: Conversation | None = None) -> Conversation:
        """Fork a chat, by default the active one, at the message, beside it."""
        source = source or self.active
        fork = self.services.store.fork(source.chat.id, message_id)
        return self._add(fork, self._all.index(source) + 1)

    def spread(self, conversation: Conversation, others: list[Message]) -> None:
        """Add a fork of the chat for each sample. Unused forks of an earlier try are reused: the sample
        becomes a new version of their reply.
        """
        if conversation not in self._all:  # it was closed
            return
        source = conversation.chat
        question = source.messages[-2].id
        asked, before = self._samples.get(source.id, (0, {}))
        samples = before if asked == question else {}
        free = [each for each in self._all if self._is_free(each, source, samples)]
        place = self._all.index(conversation)
        for other in others:
            if (fork := self._renewed(free, other)) is None:
                chat = self.services.store.fork(source.id, other.id)
                chat.messages[-1] = replace(other, id=chat.messages[-1].id)
                self.services.store.update(chat.messages[-1])
                self._all.insert(place + 1, fork := Conversation(chat, self.services))
            place, samples[fork.chat.id] = self._all.index(fork), fork.newest
        self._samples[source.id] = question, samples
        self._pinned_first()

    def _is_free(self, fork: Conversation, source: Chat, samples: Mapping[int, int]) -> bool:
        """Whether the fork is unused: it ends with its sample, is not active, and has no draft or changes."""
        chat = fork.chat
        same = (chat.params, chat.system, chat.adapter) == (source.params, source.system, source.adapter)
        quiet = fork is not self.active and fork.editing is None and not (fork.streaming or chat.draft)
        return same and quiet and samples.get(chat.id) == fork.newest

    def _renewed(self, free: list[Conversation], sample: Message) -> Conversation | None:
        """The first of these forks, now with this sample as its reply."""
        while free and sample.state != "failed":
            fork = free.pop(0)
            try:
                take(fork, sample)
            except (ChatChanged, ChatGone):
                self.outdated([fork])
            else:
                return fork
        return None

    def pin(self, conversation: Conversation, on: bool) -> None:
        """Pin or unpin a chat; pinned chats come first."""
        self._pin(conversation.chat.id, on)
        self._pinned_first()

    def is_pinned(self, conversation: Conversation) -> bool:
        return conversation.chat.id in self._pinned

    def _pin(self, chat_id: int, on: bool) -> None:
        (self._pinned.add if on else self._pinned.discard)(chat_id)
        self._turned[chat_id] = on

    def _pinned_first(self) -> None:
        self._all.sort(key=lambda each: not self.is_pinned(each))

    def reopen(self, chat_id: int | None = None) -> Conversation | None:
        chat = self.services.store.reopen_chat(chat_id)
        return self._add(chat, len(self._all)) if chat else None

    async def close(self, conversation: Conversation) -> bool:
        """Close the chat, whose draft is saved. Return False if another screen has deleted it."""
        await conversation.stop_and_wait()
        try:
            self.services.store.keep_edit(conversation.chat.id, typed_edit(conversation))
            self.services.store.close_chat(conversation.chat.id)
        except ChatGone:
            kept = False
        else:
            kept = True
        self._take_away(conversation)
        return kept

    async def delete(self, conversation: Conversation) -> None:
        """Delete the chat from the screen and the store."""
        await conversation.stop_and_wait()
        self.erase(conversation.chat.id)
        self._take_away(conversation)

    def erase(self, chat_id: int) -> None:
        """Delete a chat from the store."""
        self.services.store.delete_chat(chat_id)
        self._pin(chat_id, False)

    async def forget(self) -> None:
        """Delete the cache blocks of deleted chats from the engine's disk, also those left by earlier screens
        that were killed before, or whose disk failed.
        """
        for key in self.services.store.deleted():
            if await self.services.backend.forget_chat(key):
                self.services.store.forgotten(key)

    def catch_up(self) -> None:
        """Load changes of other screens; a chat with a running reply is updated once it ends."""
        if self.services.store.changed():
            self._behind, self._may_lack = {each.chat.id for each in self._all}, True
        for each in self._all:
            if each.chat.id in self._behind and not each.streaming:
                self._behind.remove(each.chat.id)
                with suppress(ChatGone):  # reported on the next write to it
                    self._reread(each)

    def open_others(self) -> list[Conversation]:
        """Open and return the chats that another screen has opened and in which something was said."""
        if not self._may_lack:
            return []
        self._may_lack = False
        there = self.services.store.open_chats(known={each.chat.id for each in self._all})
        found = [Conversation(chat, self.services) for chat in there if chat.messages]
        self._free({chat.letter for chat in there})
        self._all += found
        return found

    def _free(self, letters: set[str]) -> None:
        """Give chats that have these letters others: another screen has deleted or closed them."""
        for each in self._all:
            if each.chat.letter in letters:
                each.chat.letter = free_letter(letters.union(self.services.store.shown()))
                self.services.changed(each)

    def outdated(self, conversations: Sequence[Conversation]) -> None:
        """Another screen has changed these chats."""
        self._behind |= {each.chat.id for each in conversations}

    def replying_elsewhere(self, conversation: Conversation) -> bool:
        """Whether another screen receives a reply in this chat. Loads its changes first."""
        self.catch_up()
        if _awaits(conversation):
            self.services.store.settle_interrupted()  # that screen may have been killed
            with suppress(ChatGone):
                self._reread(conversation)
        return _awaits(conversation)

    def remember(self, file: Path) -> None:
        """Save the arrangement now, because a killed screen cannot. Pins and marks of other screens stay."""
        stand, before = [each.chat.id for each in self._all], Remembered.read(file)
        pinned = {each for each in (*before.pinned, *self._turned) if self._turned.get(each, True)}
        self._turned.clear()
        before.left(stand, self.active.chat.id, sorted(pinned), self._still_unread(before)).write(file)

    def _still_unread(self, before: Remembered) -> list[int]:
        """The chats that no screen has shown since their replies came. A mark may be another screen's."""
        now = {each.chat.id: each.unread for each in self._all}
        turned = {id: on for id, on in now.items() if on != self._unread.get(id, False)}
        turned |= {each.chat.id: False for each in (*self._shown, self.active)}
        self._unread = now
        return sorted(id for id in {*before.unread, *turned} if turned.get(id, True))

    async def resume(self) -> None:
        """Continue replies that earlier screens started, if the engine still has them."""
        await asyncio.gather(*(each.resume() for each in self._all))

    async def shut_down(self) -> None:
        """The program ends: save every reply and stop it unless the engine outlives the screen."""
        self.services.pacer.rush()
        await asyncio.gather(*(each.shut_down() for each in self._all))
        self.services.store.save_again()  # without a terminal, the program may not get further

    def _reread(self, conversation: Conversation) -> None:
        chat = conversation.chat
        now = self.services.store.chat(chat.id, max(PAGE, len(chat.messages)))
        heading = (now.title, now.system, now.params, now.adapter)
        same = heading == (chat.title, chat.system, chat.params, chat.adapter)
        chat.title, chat.system, chat.params, chat.adapter = heading
        before, chat.messages, chat.earlier = chat.messages, now.messages, now.earlier
        if before != now.messages:
            conversation.likely = None  # of a reply that is no longer the last one
            if conversation.view is not None:
                _show_changes(conversation.view, before, now.messages)
        if not same or before != now.messages:
            self.services.changed(conversation)

    def _take_away(self, conversation: Conversation) -> None:
        """Remove the chat; replace the last one with a new chat."""
        index = self._all.index(conversation)
        self._all.remove(conversation)
        if not self._all:
            self._all.append(Conversation(self._made(), self.services))
        if self.active is conversation:
            self.active = self._all[min(index, len(self._all) - 1)]

    def _made(self) -> Chat:
        return self.services.store.create_chat("", self.system, self.defaults)

    def _add(self, chat: Chat, index: int) -> Conversation:
        conversation = Conversation(chat, self.services)
        self._all.insert(index, conversation)
        self._pinned_first()
        self.active = conversation
        return conversation


def _show_changes(view: ConversationView, before: list[Message], now: list[Message]) -> None:
    """Show what has been added to the last message and after it, without moving the view."""
    last = len(before) - 1
    if last < 0 or before[:last] != now[:last] or before[last].id not in [each.id for each in now[last:]][:1]:
        view.show_messages()
        return
    if now[last] != before[last]:
        view.settle_message(now[last])
    for each in now[last + 1 :]:
        view.add_message(each)


def typed_edit(conversation: Conversation) -> Edit | None:
    """The edit that a chat is left with, or killed with; None if nothing was typed."""
    id, text = conversation.editing, conversation.edited
    typed = any(each.id == id and each.text != text for each in conversation.messages)
    return Edit(id, text) if id is not None and typed else None


def _awaits(conversation: Conversation) -> bool:
    """Whether the chat ends with a running reply that is not this screen's."""
    last = conversation.chat.messages[-1:]
    return not conversation.streaming and any(each.state == "streaming" for each in last)
