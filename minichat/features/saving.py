"""Chats in memory, because their file could not be written, are saved once that works."""

from textual.timer import Timer

from minichat.features.feature import Context, Feature
from minichat.session.conversation import Conversation

_EVERY = 10.0  # seconds between two attempts


class Saving:
    """Tries again to save chats that could not be saved, as on a full disk, until that works."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._timer: Timer | None = None
        context.signals.changed.connect(self._look)

    def _look(self, _: Conversation) -> None:
        unsaved = self._context.chats.services.store.unsaved
        if unsaved and self._timer is None:
            self._timer = self._context.app.set_interval(_EVERY, self._try)
        elif not unsaved and self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _try(self) -> None:
        chats = self._context.chats
        chats.services.store.save_again()
        if not chats.services.store.unsaved:
            chats.services.changed(chats.active)


SAVING = Feature(name="saving", title="Saving", part=Saving)
