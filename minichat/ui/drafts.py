"""Keeps the unsent text of each chat, and saves it: a killed program loses at most a second of a draft."""

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from textual.timer import Timer

from minichat.chats.model import Edit
from minichat.features.feature import Context
from minichat.session.conversation import Conversation
from minichat.session.open_chats import typed_edit

_LATE = 0.25  # seconds; the timer itself may be late while a model loads


def unsent(conversation: Conversation) -> str:
    """The text for the prompt: the edit of a sent message, else the draft."""
    return conversation.chat.draft if conversation.editing is None else conversation.edited


def keep(conversation: Conversation, text: str) -> None:
    """Keep the text of the prompt as a draft, or as the edit. An edit leaves the draft as it was."""
    if conversation.editing is None:
        conversation.chat.draft = text
    else:
        conversation.edited = text


class SavedDrafts:
    """Saves drafts that have changed, also edits and system prompts. No timer runs while nothing is typed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # What this screen has stored or read. Another screen may have stored something else since.
        self._kept = WeakKeyDictionary[Conversation, str]()
        self._kept_edits = WeakKeyDictionary[Conversation, Edit | None]()
        self._kept_systems = WeakKeyDictionary[Conversation, str | None]()
        self.know(context.chats)
        self._timer: Timer | None = None

    def know(self, conversations: Iterable[Conversation]) -> None:
        """Take the drafts of these chats as stored: they have just been read."""
        for each in conversations:
            self._kept[each], self._kept_systems[each] = each.chat.draft, each.chat.typed_system
            self._kept_edits[each] = each.chat.edit

    def note(self) -> None:
        """Schedule a save: the text has changed."""
        if self._timer is None:
            self._timer = self._context.app.set_timer(_LATE, self.keep)

    def keep(self) -> None:
        """Save the drafts of all chats now: the active chat may have changed."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        context, active, store = self._context, self._context.chats.active, self._context.chats.services.store
        keep(active, context.workspace.prompt.text)
        for each in list(context.chats):
            if self._kept.get(each) != (draft := each.chat.draft):
                before, self._kept[each] = self._kept.get(each), draft
                with context.program.reporting_errors():
                    store.keep_draft(each.chat.id, draft, before)
            edit = typed_edit(each)
            if each not in self._kept_edits or self._kept_edits[each] != edit:
                self._kept_edits[each] = edit
                with context.program.reporting_errors():
                    store.keep_edit(each.chat.id, edit)
            typed = each.chat.typed_system
            if each not in self._kept_systems or self._kept_systems[each] != typed:
                used, self._kept_systems[each] = self._kept_systems.get(each), typed
                with context.program.reporting_errors():
                    store.keep_typed_system(each.chat.id, typed, used)
