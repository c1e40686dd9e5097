"""Process keys in order: a key waits until the previous one has taken effect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from textual.events import Key, Paste
from textual.message_pump import MessagePump

from minichat.shell import pasting

if TYPE_CHECKING:
    from textual.app import App


class KeyOrder:
    """Textual sends a key to the focused widget, and looks for a binding only when the event has bubbled up.

    A key typed in the meantime could overtake it: into the chat that Ctrl+N leaves, past an opening dialog,
    or into nothing before the first focus. Letters typed into a field do not delay others.

    Until the program takes over, the terminal is in line mode and turns Enter into Ctrl+J. So before the
    first frame, Ctrl+J means Enter, which users press early, and not a new line, which they do not. Several
    lines before the first frame come from a paste and stay together.
    """

    # A removed widget may drop the callback, so a key waits for three seconds at most. They are in parts,
    # one in a turn of the loop: a callback needs some ten turns, however long they take on a busy machine.
    PARTS, PART = 30, 0.1  # seconds

    def __init__(self, app: App[object]) -> None:
        self._app = app
        self._waiting: deque[Key | Paste] = deque()
        self._held = self._blind = True  # until the screen accepts keys
        self._timeout: asyncio.TimerHandle | None = None
        self._turn = 0  # of the event that others wait for; callbacks of earlier ones may come late
        pasting.install()

    def waits(self, event: Key | Paste) -> bool:
        """Whether the event is held and replayed later."""
        if self._held:
            self._waiting.append(event)
        return self._held

    def path(self, event: Key | Paste) -> Sequence[MessagePump]:
        """The queues an event passes before it has fully taken effect; empty if a field consumes it."""
        focused = self._app.focused
        if focused is None:
            return [self._app.screen, self._app]
        if isinstance(event, Paste) or focused.check_consume_key(event.key, event.character):
            return []
        return focused.ancestors_with_self

    def hold(self, path: Sequence[MessagePump]) -> None:
        """Hold later events until a callback has passed through these queues."""
        if path:
            self._held = True
            self._turn += 1
            self._count(self.PARTS)
            # Once for the key, which bubbles up to the binding that acts, and once for what that posts.
            self._pass([*path, *path], partial(self.settle, self._turn))

    def _count(self, left: int) -> None:
        """Let other events go on when the parts are over."""
        if left:
            self._timeout = asyncio.get_running_loop().call_later(self.PART, self._count, left - 1)
        else:
            self._release_soon(self._turn)

    def settle(self, turn: int = 0) -> None:
        """Also wait for the app's queue: the key may have opened a screen, which then takes the focus.

        It may also have closed one, whose answer opens the next.
        """
        screen = self._app.screen

        def again() -> None:
            if self._app.screen_stack[-1:] in ([], [screen]):  # none: the program ends
                self._release_soon(turn)
            else:
                self.settle(turn)

        self._pass([screen, self._app], again)

    def _pass(self, path: list[MessagePump], then: Callable[[], None]) -> None:
        while path:
            if path.pop(0).call_later(self._pass, path, then):
                return
        then()

    def _release_soon(self, turn: int) -> None:
        self._app.call_later(self._release, turn)

    async def _release(self, turn: int) -> None:
        if turn != self._turn:
            return
        if self._timeout is not None:
            self._timeout.cancel()
        if self._blind:
            self._waiting = deque(_seen(self._waiting))
        self._held = self._blind = False
        while self._waiting and not self._held:
            await self._app.on_event(self._waiting.popleft())


def _seen(blind: Iterable[Key | Paste]) -> Iterator[Key | Paste]:
    """Convert events from before the first frame to what the user meant."""
    for _, group in groupby(blind, lambda event: bool(_written(event))):
        events = list(group)
        text = "".join(map(_written, events)).strip("\n")
        if "\n" in text:
            yield Paste(text)
        else:
            yield from (Key("enter", "\r") if _written(each) == "\n" else each for each in events)


def _written(event: Key | Paste) -> str:
    """The text a key enters in a terminal in line mode."""
    if isinstance(event, Paste):
        return ""
    if event.key == "ctrl+j":
        return "\n"
    return event.character if event.character and (event.is_printable or event.key == "tab") else ""
