"""Ctrl+P: the command palette lists every command and the features' extra entries."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from textual import on
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.events import Key
from textual.markup import escape
from textual.widgets import Input, LoadingIndicator, OptionList

from minichat.features.feature import Context, Feature, Offer, ScreenCommand


class Palette(CommandPalette):
    """A palette without blinking cursor or spinner: each redraw would send bytes over the network."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__([_provider(context)], placeholder="type a command", id="--command-palette")
        self._keys = context.keys

    async def on_key(self, event: Key) -> None:
        """Close the palette with the key that opened it."""
        if event.key in self._keys.of("program.palette"):
            event.stop()
            await self.run_action("escape")

    def action_page(self, direction: int) -> None:
        """Move by a page, unless the list has no room yet, or none at all: then Textual raises an error."""
        commands = self.query_one(CommandList)
        if commands.scrollable_content_region:
            commands.action_page_down() if direction > 0 else commands.action_page_up()

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _once(self, event: OptionList.OptionSelected | Input.Submitted) -> None:
        """Ignore what was still on its way when the palette closed: Textual would close the screen below."""
        if not self.is_current:
            event.stop()
            event.prevent_default()

    def dismiss(self, result: None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_current else AwaitComplete.nothing()

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(LoadingIndicator).auto_refresh = None


def _provider(context: Context) -> type[Provider]:
    """Textual instantiates the provider class itself, so make a class that holds the context."""

    class Commands(Provider):
        """Runs a command as its key would."""

        async def discover(self) -> Hits:
            for title, group, run in offers(context):
                yield DiscoveryHit(Content(title), run, text=title, help=escape(group))

        async def search(self, query: str) -> Hits:
            matcher = self.matcher(query)
            for title, group, run in offers(context):
                if (score := matcher.match(title)) > 0:
                    # A chat's title may look like markup, which the matcher would parse.
                    shown = Content(title) if "[" in title else matcher.highlight(title)
                    yield Hit(score, shown, run, text=title, help=escape(group))

    return Commands


def offers(context: Context) -> Iterator[Offer]:
    """All current palette entries."""
    for command in context.commands:
        if command.palette and command.enabled(context):
            key = context.keys.name(command.id)
            group = f"{command.group}   {key}" if key else command.group
            yield command.title, group, partial(context.run, command)
    for feature in context.features:
        if feature.offers is not None:
            for title, group, work in feature.offers(context):
                yield title, group, partial(context.do, work)


def show(context: Context) -> None:
    if not CommandPalette.is_open(context.app):
        context.app.push_screen(Palette(context))


PALETTE = Feature(
    name="palette",
    title="All commands",
    commands=(
        ScreenCommand("program.palette", "Program", "All commands", show, "ctrl+p", "all", palette=False),
    ),
)
