"""After any operations through two stores on one file, both hold what a plain dictionary holds."""

import tempfile
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from string import ascii_lowercase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from engine.api.params import SamplingParams
from minichat.chats.model import Message, fork_title
from minichat.chats.store import Store
from tests.examples import TIMES

texts = st.text(max_size=12)
either = st.integers(0, 1)
LETTERS = [*ascii_lowercase, *(f"a{letter}" for letter in ascii_lowercase)]


@dataclass
class Remembered:
    """The expected content of a chat."""

    title: str
    letter: str
    params: SamplingParams
    messages: dict[int, Message] = field(default_factory=dict)
    closed: float | None = None


class TwoScreens(RuleBasedStateMachine):
    chats = Bundle("chats")

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.ticks = count(1)
        self.stores = [self.opened(), self.opened()]
        self.known: dict[int, Remembered] = {}

    def opened(self) -> Store:
        return Store(Path(self.folder.name) / "chats.db", clock=lambda: float(next(self.ticks)))

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()

    def free_letter(self) -> str:
        taken = {chat.letter for chat in self.known.values() if chat.closed is None}
        return next(letter for letter in LETTERS if letter not in taken)

    @rule(target=chats, screen=either, title=texts, temperature=st.sampled_from([0.0, 0.7, 1.0]))
    def create(self, screen: int, title: str, temperature: float) -> int:
        params, letter = SamplingParams(temperature=temperature), self.free_letter()
        chat = self.stores[screen].create_chat(title, params=params)
        assert chat.id not in self.known
        self.known[chat.id] = Remembered(title, letter, params)
        return chat.id

    @rule(screen=either, chat=chats, title=texts)
    def rename(self, screen: int, chat: int, title: str) -> None:
        self.stores[screen].rename(chat, title)
        self.known[chat].title = title

    @rule(screen=either, chat=chats, role=st.sampled_from(["user", "assistant"]), text=texts)
    def append(self, screen: int, chat: int, role: str, text: str) -> None:
        message = self.stores[screen].append(chat, role, text, state="streaming")
        assert all(message.id > other for known in self.known.values() for other in known.messages)
        self.known[chat].messages[message.id] = message

    @rule(screen=either, chat=chats, text=texts, done=st.booleans(), data=st.data())
    def update(self, screen: int, chat: int, text: str, done: bool, data: st.DataObject) -> None:
        messages = self.known[chat].messages
        if messages:
            old = messages[data.draw(st.sampled_from(sorted(messages)))]
            new = replace(old, text=old.text + text, state="done" if done else old.state)
            assert self.stores[screen].update(new)
            messages[old.id] = new

    @rule(screen=either, chat=chats, data=st.data())
    def cut(self, screen: int, chat: int, data: st.DataObject) -> None:
        messages = self.known[chat].messages
        if messages:
            place = data.draw(st.sampled_from(sorted(messages)))
            self.stores[screen].add_turn(chat, max(messages), (), instead_of=place)
            self.known[chat].messages = {id: message for id, message in messages.items() if id < place}
            self.reopened(chat)

    @rule(screen=either, chat=chats)
    def close_chat(self, screen: int, chat: int) -> None:
        self.stores[screen].close_chat(chat)
        self.known[chat].closed = float(next(self.ticks))

    @rule(screen=either)
    def reopen_last(self, screen: int) -> None:
        closed = {id: chat.closed for id, chat in self.known.items() if chat.closed is not None}
        found = self.stores[screen].reopen_chat()
        assert (found and found.id) == max(closed, key=lambda id: closed[id] or 0, default=None)
        if found:
            self.reopened(found.id)

    @rule(screen=either, chat=chats)
    def reopen(self, screen: int, chat: int) -> None:
        self.stores[screen].reopen_chat(chat)
        self.reopened(chat)

    def reopened(self, chat: int) -> None:
        known = self.known[chat]
        if known.closed is not None:
            taken = {other.letter for other in self.known.values() if other.closed is None}
            known.letter = self.free_letter() if known.letter in taken else known.letter
            known.closed = None

    @rule(target=chats, screen=either, chat=chats, data=st.data())
    def fork(self, screen: int, chat: int, data: st.DataObject) -> object:
        source = self.known[chat]
        if not source.messages:
            return multiple()
        place, letter = data.draw(st.sampled_from(sorted(source.messages))), self.free_letter()
        fork = self.stores[screen].fork(chat, place)
        taken = {each.title for each in self.known.values() if each.closed is None}
        known = Remembered(fork_title(source.title, taken), letter, source.params)
        copied = [message for id, message in sorted(source.messages.items()) if id <= place]
        ids = [message.id for message in self.stores[screen].history(fork.id)]
        for id, message in zip(ids, copied, strict=True):
            state = "stopped" if message.state == "streaming" else message.state
            known.messages[id] = replace(message, id=id, state=state, interrupted=False)
        self.known[fork.id] = known
        return fork.id

    @rule(screen=either, chat=consumes(chats))
    def delete(self, screen: int, chat: int) -> None:
        self.stores[screen].delete_chat(chat)
        del self.known[chat]

    @rule(screen=either, word=st.text("abc", min_size=1, max_size=2))
    def search(self, screen: int, word: str) -> None:
        found = {hit.message for hit in self.stores[screen].search(word, limit=1000) if hit.message}
        messages = (message for chat in self.known.values() for message in chat.messages.values())
        assert found == {message.id for message in messages if word in message.text.casefold()}

    @rule()
    def start_again(self) -> None:
        """Close and reopen everything, as when the program restarts; a streaming reply becomes stopped."""
        for store in self.stores:
            store.close()
        self.stores = [self.opened(), self.opened()]
        for chat in self.known.values():
            for id, message in chat.messages.items():
                if message.state == "streaming":
                    error = "minichat quit while this reply was streaming"
                    chat.messages[id] = replace(message, state="stopped", error=error, interrupted=True)

    @invariant()
    def both_hold_the_same(self) -> None:
        for store in getattr(self, "stores", []):
            assert [chat.id for chat in store.open_chats()] == sorted(
                id for id, chat in self.known.items() if chat.closed is None
            )
            assert len(store.listing()) == len(self.known)
            for id, known in self.known.items():
                chat = store.chat(id, last=3)
                assert (chat.title, chat.letter, chat.params) == (known.title, known.letter, known.params)
                messages_read = [message for _, message in sorted(known.messages.items())]
                assert (chat.messages, chat.earlier) == (messages_read[-3:], max(0, len(messages_read) - 3))
                assert store.history(id) == messages_read
            assert store.notices == []


TestTwoScreens = TwoScreens.TestCase
TestTwoScreens.settings = settings(max_examples=10 * TIMES, stateful_step_count=30)
