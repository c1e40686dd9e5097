"""What is typed and not sent, kept as it is typed: a program that is killed loses a second of it."""

from textual.timer import Timer

from minichat.features.feature import Context

LATE = 1.0  # seconds, at most


class SavedDrafts:
    """Writes those that have changed; while nothing is typed there is no timer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept = {each.chat.id: each.chat.draft for each in context.chats}
        self._timer: Timer | None = None

    def note(self) -> None:
        """Something was typed."""
        if self._timer is None:
            self._timer = self._context.app.set_timer(LATE, self.keep)

    def keep(self) -> None:
        """Now, of all chats: another one may be the active one since."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        context, active = self._context, self._context.chats.active
        if active.editing is None:
            active.chat.draft = context.workspace.prompt.text
        for chat in [each.chat for each in context.chats]:
            if self._kept.get(chat.id, "") != chat.draft:
                self._kept[chat.id] = chat.draft
                with context.program.complaining():
                    context.chats.services.store.change_chat(chat.id, draft=chat.draft)
