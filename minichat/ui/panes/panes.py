"""The chats side by side: panes for the visible chats and the most recently visible ones."""

from collections.abc import Callable, Sequence

from textual.containers import Horizontal
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.session.conversation import Conversation
from minichat.ui.panes.pane import ChatPane
from minichat.ui.transcript import Glyphs
from minichat.ui.transcript.entry import Spot

_KEPT = 6  # most panes kept: a change of the terminal's focus restyles every widget


class Panes(Horizontal):
    """Creates a chat's pane when it becomes visible, and removes the least recently visible ones."""

    def __init__(
        self, glyphs: Glyphs, below: Sequence[Callable[[ChatPane], Widget]] = (), id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._glyphs, self._below = glyphs, below
        self._panes: dict[int, ChatPane] = {}  # by chat, most recently shown last
        self._left_at: dict[int, tuple[int, Spot] | None] = {}  # where those of other chats were
        self._unfolded: set[int] = set()  # the messages whose reasoning is shown

    @property
    def all(self) -> list[ChatPane]:
        return list(self._panes.values())

    def of(self, conversation: Conversation) -> ChatPane:
        """The pane of a visible chat."""
        return self._panes[conversation.chat.id]

    def show(self, shown: Sequence[Conversation], order: Sequence[Conversation]) -> None:
        """Show these chats only. `order`: all chats in the order of the tabs."""
        for each in shown:
            known = each.chat.id in self._panes
            pane = self._panes.pop(each.chat.id) if known else self._mounted(each, order)
            self._panes[each.chat.id] = pane
        for chat_id in list(self._panes)[:-_KEPT]:
            self._forget(chat_id)
        for pane in self.all:
            pane.display = pane.conversation in shown
            pane.set_class(pane.conversation is not shown[-1], "-divided")

    def see_snapshot(self, _: Snapshot) -> None:
        """Update the figures of replies that get no text."""
        for pane in self.all:
            pane.see_snapshot()

    def drop(self, conversation: Conversation) -> None:
        """Remove the pane of a closed chat."""
        if conversation.chat.id in self._panes:
            self._forget(conversation.chat.id)

    def _forget(self, chat_id: int) -> None:
        """Remove a pane after the next layout: a dialog draws its background from the last one."""
        pane = self._panes.pop(chat_id)
        self._left_at[chat_id] = pane.transcript.left_at
        pane.display = False
        self.call_after_refresh(pane.remove)

    def _mounted(self, conversation: Conversation, order: Sequence[Conversation]) -> ChatPane:
        left_at = self._left_at.pop(conversation.chat.id, None)
        pane = ChatPane(conversation, self._glyphs, self._below, left_at, self._unfolded)
        after = order[order.index(conversation) + 1 :]
        self.mount(pane, before=next((self.of(each) for each in after if each.chat.id in self._panes), None))
        return pane
