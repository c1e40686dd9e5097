"""Saves unsent text while it is typed: a killed program loses at most a second of it."""

from textual.timer import Timer

from minichat.features.feature import Context

_LATE = 0.25  # seconds; the timer itself may be late while a model loads


class SavedDrafts:
    """Saves drafts that have changed. No timer runs while nothing is typed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept = {each.chat.id: each.chat.draft for each in context.chats}
        self._timer: Timer | None = None

    def note(self) -> None:
        """Schedule a save: the text has changed."""
        if self._timer is None:
            self._timer = self._context.app.set_timer(_LATE, self.keep)

    def keep(self) -> None:
        """Save the drafts of all chats now: the active chat may have changed."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        context, active = self._context, self._context.chats.active
        if active.editing is None:
            active.chat.draft = context.workspace.prompt.text
        for chat in [each.chat for each in context.chats]:
            if self._kept.get(chat.id, "") != chat.draft:
                self._kept[chat.id] = chat.draft
                with context.program.reporting_errors():
                    context.chats.services.store.change_chat(chat.id, draft=chat.draft)
