"""The versions of a reply: what was regenerated, or edited, is kept for as long as the chat does not go on.

The store keeps the last one, and a complete reply rather than one that was stopped, for later starts.
"""

from minichat.chats.errors import StoreError
from minichat.chats.model import Chat, Message, own_title, title_from
from minichat.chats.store import Store


class Versions:
    """One version is shown and stored. The others are here, each with the messages that followed it."""

    def __init__(self, chat: Chat, store: Store) -> None:
        self._chat, self._store = chat, store
        self._after, kept = store.replaced(chat.id)  # the message before them
        self._others = [kept] if kept else []  # the last one was shown before

    @property
    def complete(self) -> bool:
        """Whether the one that was shown before is a complete reply, and not to another message."""
        first = self._others[-1][0] if self._others else None
        return first is not None and (first.role, first.state) == ("assistant", "done")

    def begin(self, instead_of: int | None) -> None:
        """A reply begins, maybe in place of this message and all after it."""
        before, end = self._split(self._chat.messages, instead_of)
        after = before[-1].id if before else 0
        if instead_of is None or after != self._after:
            self._others, self._after = [], after
        if instead_of is not None:
            self._add(end, len(self._others))
        self._chat.messages = before

    @property
    def another(self) -> bool:
        """Whether there is one to switch to."""
        before, end = self._split(self._chat.messages, self._after + 1)
        return bool(self._others and end) and (before[-1].id if before else 0) == self._after

    @property
    def place(self) -> str:
        """Which version is shown, in the order in which they were written: `2 of 3`."""
        shown = self._split(self._chat.messages, self._after + 1)[1][0].id
        written = sorted([shown, *(each[0].id for each in self._others)])
        return f"{written.index(shown) + 1} of {len(written)}"

    def switch(self, *, back: bool = True) -> bool:
        """Show and store the version that was shown before. Return False if there is none.

        The next switch goes further back, and to this one last. Without `back` it returns to this one.
        """
        if not self.another:
            return False
        before, end = self._split(self._chat.messages, self._after + 1)
        earlier = self._others[-1]
        self._store.replace_end(self._chat.id, end[-1].id, self._after, earlier)
        self._others.pop()
        self._add(end, 0 if back else len(self._others))
        self._chat.messages = [*before, *earlier]
        if not (before or self._chat.earlier or own_title(self._chat.title, end[0].text)):
            self._chat.title = title_from(earlier[0].text)
            self._store.rename(self._chat.id, self._chat.title)
        return True

    def restore(self) -> bool:
        """The new reply was stopped or killed: return to a complete one. Return False if there is none."""
        try:
            return self.complete and self.switch(back=False)
        except StoreError:  # the stopped one stays
            return False

    @staticmethod
    def _split(messages: list[Message], first: int | None) -> tuple[list[Message], list[Message]]:
        """The messages before this id, and the others."""
        count = sum(first is None or each.id < first for each in messages)
        return messages[:count], messages[count:]

    def _add(self, end: list[Message], place: int) -> None:
        if end and (end[0].text or end[0].reasoning):
            self._others.insert(place, end)
