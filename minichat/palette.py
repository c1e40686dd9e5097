"""The command palette: everything in the table of commands, and every open chat."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.events import Key
from textual.widgets import Input, LoadingIndicator

from minichat.keys import COMMANDS, key_name, keys_for, keys_of
from minichat.switches import NAMES
from minichat.widgets.tabs import titled

if TYPE_CHECKING:
    from minichat.app import MinichatApp

Entry = tuple[str, str, Callable[[], Awaitable[object] | None]]


class Commands(Provider):
    """Runs an action as its key would."""

    async def discover(self) -> Hits:
        for title, help, run in self._entries():
            yield DiscoveryHit(title, run, help=help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, help, run in self._entries():
            if (score := matcher.match(title)) > 0:
                yield Hit(score, matcher.highlight(title), run, help=help)

    def _entries(self) -> Iterator[Entry]:
        app = cast("MinichatApp", self.app)
        for command in COMMANDS:
            if command.palette:
                keys = keys_of(command.id, app.keymap)
                run = partial(app.main.run_action, command.action)
                yield command.title, f"{command.group}   {key_name(keys)}" if keys else command.group, run
        for each in app.main.latest.switches if app.main.latest else ():
            title = f"Turn {NAMES.get(each.name, each.name)} {'off' if each.on else 'on'}"
            yield title, "Engine", partial(app.main.run_action, f"switch({each.name!r})")
        for index, conversation in enumerate(app.chats):
            chat = conversation.chat
            title = f"Go to {chat.letter.upper()}: {titled(chat.title)}"
            yield title, "Chats", partial(app.main.run_action, f"go({index})")


class Palette(CommandPalette):
    """Nothing in it moves by itself: that is a timer, and bytes over the network for nothing."""

    def __init__(self) -> None:
        super().__init__(placeholder="what to do", id="--command-palette")

    async def on_key(self, event: Key) -> None:
        """Its own key takes it away again, as that of any dialog."""
        if event.key in keys_for("app.command_palette", cast("MinichatApp", self.app).keymap):
            event.stop()
            await self.run_action("escape")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(LoadingIndicator).auto_refresh = None
