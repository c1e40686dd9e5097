"""Keys one after another: what is typed right after a key waits for what that key does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from textual.events import Key, Paste
from textual.message_pump import MessagePump

from minichat import pasting

if TYPE_CHECKING:
    from textual.app import App

_PATIENCE = 1.0  # seconds: a widget that goes away may take the word with it


class KeyOrder:
    """Textual hands a key to the widget with the focus, and looks for its binding when it has come back up.

    What is typed meanwhile would overtake it: into the chat that Ctrl+N leaves, past a dialog that opens, or
    into nothing before the first focus. Letters that a field takes hold nobody up.

    Until the program takes the terminal over, that is one of lines, and makes Ctrl+J of Enter. So before the
    first frame Ctrl+J is Enter, which people press blind, and not a new line, which they do not.
    """

    def __init__(self, app: App[object]) -> None:
        self._app = app
        self._waiting: deque[Key | Paste] = deque()
        self._held = self._blind = True  # until there is a screen to type on
        self._patience: asyncio.TimerHandle | None = None
        pasting.install()

    def waits(self, event: Key | Paste) -> bool:
        """Whether it comes later, by itself."""
        if self._held:
            enter = self._blind and isinstance(event, Key) and event.key == "ctrl+j"
            self._waiting.append(Key("enter", "\r") if enter else event)
        return self._held

    def path(self, event: Key | Paste) -> Sequence[MessagePump]:
        """Whose queues it goes through before all is done that it does; empty where a field just takes it."""
        focused = self._app.focused
        if focused is None:
            return [self._app.screen, self._app]
        if isinstance(event, Paste) or focused.check_consume_key(event.key, event.character):
            return []
        return focused.ancestors_with_self

    def hold(self, path: Sequence[MessagePump]) -> None:
        """Those behind it wait until word has come after it through these queues."""
        if path:
            self._held = True
            self._patience = asyncio.get_running_loop().call_later(_PATIENCE, self._release_soon)
            self._pass(list(path), self.settle)

    def settle(self) -> None:
        """It may have opened a screen, which takes the focus by way of the program's queue."""
        self._pass([self._app.screen, self._app], self._release_soon)

    def _pass(self, path: list[MessagePump], then: Callable[[], None]) -> None:
        while path:
            if path.pop(0).call_later(self._pass, path, then):
                return
        then()

    def _release_soon(self) -> None:
        self._app.call_later(self._release)

    async def _release(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._held = self._blind = False
        while self._waiting and not self._held:
            await self._app.on_event(self._waiting.popleft())
