"""Keys one after another: what is typed right after a key waits for what that key does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from textual.events import Key, Paste
from textual.message_pump import MessagePump

from minichat.shell import pasting

if TYPE_CHECKING:
    from textual.app import App

_PATIENCE = 1.0  # seconds: a widget that goes away may take the word with it


class KeyOrder:
    """Textual hands a key to the widget with the focus, and looks for its binding when it has come back up.

    What is typed meanwhile would overtake it: into the chat that Ctrl+N leaves, past a dialog that opens, or
    into nothing before the first focus. Letters that a field takes hold nobody up.

    Until the program takes the terminal over, that is one of lines, and makes Ctrl+J of Enter. So before the
    first frame Ctrl+J is Enter, which people press blind, and not a new line, which they do not. Nor do they
    type several lines blind: those are of something pasted, and stay together.
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
            self._waiting.append(event)
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
        if self._blind:
            self._waiting = deque(_seen(self._waiting))
        self._held = self._blind = False
        while self._waiting and not self._held:
            await self._app.on_event(self._waiting.popleft())


def _seen(blind: Iterable[Key | Paste]) -> Iterator[Key | Paste]:
    """What came before the first frame, as it was meant."""
    for _, group in groupby(blind, lambda event: bool(_written(event))):
        events = list(group)
        text = "".join(map(_written, events)).strip("\n")
        if "\n" in text:
            yield Paste(text)
        else:
            yield from (Key("enter", "\r") if _written(each) == "\n" else each for each in events)


def _written(event: Key | Paste) -> str:
    """What a key adds to a text, in a terminal of lines."""
    if isinstance(event, Paste):
        return ""
    if event.key == "ctrl+j":
        return "\n"
    return event.character if event.character and (event.is_printable or event.key == "tab") else ""
