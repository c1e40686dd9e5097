"""The versions of a reply: what was regenerated, or edited, is kept for as long as the chat does not go on.

The store has them, so they are there at later starts, in the same order. It bounds their number.
"""

from dataclasses import replace

from minichat.chats.errors import StoreBusy, StoreError
from minichat.chats.model import Chat, Message, own_title, title_from
from minichat.chats.store import Store


class Versions:
    """One version is shown. The others are kept, each with the messages that followed it."""

    def __init__(self, chat: Chat, store: Store) -> None:
        self._chat, self._store = chat, store
        self._read: tuple[int, list[list[Message]]] | None = None  # as last read from the store
        self._read_at = 0  # what was the newest message then
        self._refused: dict[int, str] = {}  # what the engine refused, by message; it is not stored

    @property
    def complete(self) -> bool:
        """Whether the one that was shown before is a complete reply, and not to another message."""
        _, others = self._kept()
        first = others[-1][0] if others else None
        return first is not None and first.role == "assistant" and first.complete

    def begin(self, instead_of: int | None) -> None:
        """The store has begun a reply, maybe in place of this message and all after it."""
        self._chat.messages, end = self._split(self._chat.messages, instead_of)
        self._leave(end)

    @property
    def another(self) -> bool:
        """Whether there is one to switch to. Not while another program keeps the store busy."""
        try:
            after, others = self._kept()
        except StoreBusy:
            return False
        before, end = self._split(self._chat.messages, after + 1)
        return bool(others and end) and (before[-1].id if before else 0) == after

    def lost_by(self, edited: int) -> int:
        """How many of the others are no longer kept once this message is replaced: those of replies to it."""
        after, others = self._kept()
        return len(others) if self.another and after >= edited else 0

    @property
    def place(self) -> str:
        """Which version is shown, in the order in which they were written: `2 of 3`."""
        after, others = self._kept()
        shown = self._split(self._chat.messages, after + 1)[1][0].id
        written = sorted([shown, *(each[0].id for each in others)])
        return f"{written.index(shown) + 1} of {len(written)}"

    def switch(self, *, back: bool = True) -> bool:
        """Show the version that was shown before. Return False if there is none.

        The next switch goes further back, and to this one last. Without `back` it returns to this one.
        """
        if not self.another:
            return False
        after, _ = self._kept()
        before, end = self._split(self._chat.messages, after + 1)
        self._leave(end)
        stored = self._store.replace_end(self._chat.id, end[-1].id, after, back=back)
        shown = [replace(each, refused=self._refused.get(each.id, "")) for each in stored]
        self._chat.messages = [*before, *shown]
        if not (before or self._chat.earlier or own_title(self._chat.title, end[0].text)):
            self._chat.title = title_from(shown[0].text)
            self._store.rename(self._chat.id, self._chat.title)
        return True

    def restore(self) -> bool:
        """The new reply was stopped or killed: return to a complete one. Return False if there is none."""
        try:
            return self.complete and self.switch(back=False)
        except StoreError:  # the stopped one stays
            return False

    def _kept(self) -> tuple[int, list[list[Message]]]:
        """The message before the versions, and the others, ending with the one that was shown last.

        They are read again if another screen has added to the chat.
        """
        newest = self._chat.messages[-1].id if self._chat.messages else 0
        if self._read is None or self._read_at != newest:
            self._read, self._read_at = self._store.replaced(self._chat.id), newest
        return self._read

    def _leave(self, end: list[Message]) -> None:
        """These are no longer shown; the store knows what is kept."""
        self._read = None
        self._refused |= {each.id: each.refused for each in end if each.refused}

    @staticmethod
    def _split(messages: list[Message], first: int | None) -> tuple[list[Message], list[Message]]:
        """The messages before this id, and the others."""
        count = sum(first is None or each.id < first for each in messages)
        return messages[:count], messages[count:]
