"""A part of the screen declares itself: its commands, its panel, its help, its looks."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from textual.app import App
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.chats.model import Message
from minichat.models.keeper import Keeper
from minichat.program import Program, Workspace
from minichat.session.open_chats import OpenChats
from minichat.session.presets import SavedPresets
from minichat.shell.keys import Keys
from minichat.ui.engine_watch import EngineWatch
from minichat.ui.panels import Dock, Panel, Panels
from minichat.ui.panes.pane import ChatPane
from minichat.ui.signals import Signals

T = TypeVar("T")
W = TypeVar("W", bound=Widget)


@dataclass(frozen=True, slots=True)
class Context:
    """What a feature works with: each of these has one subject."""

    app: App[object]  # dialogs, notices, workers
    program: Program
    chats: OpenChats
    workspace: Workspace
    panels: Panels
    engine: EngineWatch
    keeper: Keeper
    presets: SavedPresets
    keys: Keys
    signals: Signals
    features: Sequence["Feature"]
    commands: Sequence["ScreenCommand"]  # of all of them
    run: Callable[["ScreenCommand"], Awaitable[None]]  # as its key would
    do: Callable[[Callable[[], object]], Awaitable[None]]  # something else that may touch the disk
    leaving: list[Callable[[], bool]] = field(default_factory=list)  # asked by Esc: was anything left?
    _parts: dict[type[object], object] = field(default_factory=dict)

    def add(self, part: object) -> None:
        self._parts[type(part)] = part

    def part(self, kind: type[T]) -> T:
        """The one of that kind which a feature has made for this screen."""
        part = self._parts[kind]
        assert isinstance(part, kind)
        return part


Handler = Callable[[Context], Awaitable[None] | None]
Offer = tuple[str, str, Callable[[], object]]  # a line of the palette, its group, and what it does


def always(_: Context) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ScreenCommand:
    """What a person can do. `id` is what the settings remap; `run` does it."""

    id: str
    group: str  # of the help and the palette
    title: str
    run: Handler | None  # None: the prompt sees to its own keys
    keys: str = ""
    footer: str = ""  # its word in the last line
    priority: bool = False  # over every dialog, too
    palette: bool = True
    greeting: str = ""  # what a chat in which nothing was said tells of it
    enabled: Callable[[Context], bool] = always  # else it is not offered, and its key does nothing


@dataclass(frozen=True, slots=True)
class MessageCommand:
    """What a person can do with one message, from its menu."""

    title: str
    run: Callable[[Context, Message], Awaitable[None] | None]
    fits: Callable[[Message], bool] = field(default=lambda _: True)
    at_rest: bool = False  # only while no reply runs
    cuts: bool = False  # what came after the message goes: such are listed last


@dataclass(frozen=True, slots=True)
class HelpSection:
    """Keys of a place, and what they do there. `{id id}` becomes the keys that the person has."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PanelSpec(Generic[W]):
    """What stands beside the chats: how it is made, where it is placed, and what it is shown."""

    make: Callable[[Context], W]
    dock: Dock = Dock.DRAWER
    sees: Callable[[W, Snapshot], None] | None = None  # called only while the panel is visible
    line: Callable[[Context], Widget] | None = None  # above the prompt while the panel is hidden

    def made(self, context: Context) -> Panel:
        widget, line = self.make(context), self.line(context) if self.line is not None else None
        context.add(widget)
        if line is not None:
            context.add(line)
        return Panel(self.dock, widget, partial(self.sees, widget) if self.sees is not None else None, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """All there is to say of a part; MainScreen knows only what stands here."""

    name: str
    title: str
    commands: tuple[ScreenCommand, ...] = ()
    message_commands: tuple[MessageCommand, ...] = ()
    offers: Callable[[Context], Iterable[Offer]] | None = None  # more lines of the palette, as things are now
    part: Callable[[Context], object | None] | None = None  # made once a screen, and lives as long
    panel: PanelSpec[Any] | None = None
    in_pane: Callable[[Context, ChatPane], Widget] | None = None  # below the transcript of each chat
    help: tuple[HelpSection, ...] = ()
    keyed: tuple[tuple[str, type[Widget]], ...] = ()  # widgets with keys of their own, by the place's name
    css: str = ""
