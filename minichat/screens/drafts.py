"""What is typed and not sent, kept as it is typed: a program that is killed loses a second of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.timer import Timer

if TYPE_CHECKING:
    from minichat.screens.main import MainScreen

LATE = 1.0  # seconds, at most


class Drafts:
    """Writes those that have changed; while nothing is typed there is no timer."""

    def __init__(self, main: MainScreen) -> None:
        self._main = main
        self._kept = {each.chat.id: each.chat.draft for each in main.chats}
        self._timer: Timer | None = None

    def note(self) -> None:
        """Something was typed."""
        if self._timer is None:
            self._timer = self._main.set_timer(LATE, self.keep)

    def keep(self) -> None:
        """Now, of all chats: another one may be the active one since."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        main, active = self._main, self._main.chats.active
        if active.editing is None:
            active.chat.draft = main.prompt.text
        for chat in [each.chat for each in main.chats]:
            if self._kept.get(chat.id, "") != chat.draft:
                self._kept[chat.id] = chat.draft
                with main.program.complaining():
                    main.chats.desk.store.change_chat(chat.id, draft=chat.draft)
