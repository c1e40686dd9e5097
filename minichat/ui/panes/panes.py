"""The chats side by side: a pane for each that is shown, and for those that were shown last."""

from collections.abc import Callable, Sequence

from textual.containers import Horizontal
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.session.conversation import Conversation
from minichat.ui.panes.pane import ChatPane
from minichat.ui.transcript import Glyphs

_KEPT = 6  # at most: where a terminal tells of its focus, every widget is styled anew


class Panes(Horizontal):
    """A chat that comes into view gets its pane then; one that was left long ago has lost it."""

    def __init__(
        self, glyphs: Glyphs, below: Sequence[Callable[[ChatPane], Widget]] = (), id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._glyphs, self._below = glyphs, below
        self._panes: dict[int, ChatPane] = {}  # by chat, those shown last at the end

    @property
    def all(self) -> list[ChatPane]:
        return list(self._panes.values())

    def of(self, conversation: Conversation) -> ChatPane:
        """Of one that is shown."""
        return self._panes[conversation.chat.id]

    def show(self, shown: Sequence[Conversation], order: Sequence[Conversation]) -> None:
        """These and no others, which stand in this order."""
        for each in shown:
            known = each.chat.id in self._panes
            pane = self._panes.pop(each.chat.id) if known else self._mounted(each, order)
            self._panes[each.chat.id] = pane
        for chat_id in list(self._panes)[:-_KEPT]:
            self._forget(chat_id)
        for pane in self.all:
            pane.display = pane.conversation in shown
            pane.set_class(pane.conversation is not shown[-1], "-divided")

    def see_snapshot(self, snapshot: Snapshot) -> None:
        """How many blocks each reply holds by now, with all that answer the same request."""
        runs = [pane.conversation.run for pane in self.all]
        held: dict[int, set[int]] = {run.reply.id: set() for run in runs if run and run.reply}
        for view in snapshot.requests:
            if (request := view.id if view.group < 0 else view.group) in held:
                held[request].update(view.blocks)
        for run in runs:
            if run and run.reply:
                run.blocks = len(held[run.reply.id])

    def drop(self, conversation: Conversation) -> None:
        """Of a chat that is closed."""
        if conversation.chat.id in self._panes:
            self._forget(conversation.chat.id)

    def _forget(self, chat_id: int) -> None:
        """It goes once no layout has it: a dialog draws what is behind it by the last one."""
        pane = self._panes.pop(chat_id)
        pane.display = False
        self.call_after_refresh(pane.remove)

    def _mounted(self, conversation: Conversation, order: Sequence[Conversation]) -> ChatPane:
        pane, after = (
            ChatPane(conversation, self._glyphs, self._below),
            order[order.index(conversation) + 1 :],
        )
        self.mount(pane, before=next((self.of(each) for each in after if each.chat.id in self._panes), None))
        return pane
