"""A feature: a part of the screen that declares its commands, panel, help and style."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.chats.model import Message
from minichat.models.lifecycle import EngineLifecycle
from minichat.notices import Notices
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
    """The services a feature can use."""

    app: Notices  # dialogs, notices, workers
    program: Program
    chats: OpenChats
    workspace: Workspace
    panels: Panels
    engine: EngineWatch
    lifecycle: EngineLifecycle
    presets: SavedPresets
    keys: Keys
    signals: Signals
    features: Sequence["Feature"]
    commands: Sequence["ScreenCommand"]  # of all features
    run: Callable[["ScreenCommand"], Awaitable[None]]  # as its key would
    do: Callable[[Callable[[], object]], Awaitable[None]]  # run other work that may touch the disk
    leaving: list["Leaving"] = field(default_factory=list)  # what Esc closes, the first open one only
    _parts: dict[type[object], object] = field(default_factory=dict)

    def add(self, part: object) -> None:
        self._parts[type(part)] = part

    def part(self, kind: type[T]) -> T:
        """Return the part of this class that a feature has added."""
        part = self._parts[kind]
        assert isinstance(part, kind)
        return part


@dataclass(frozen=True, slots=True)
class Leaving:
    """Something that Esc closes, wherever the focus is."""

    opened: Callable[[], bool]
    close: Callable[[], object]


Handler = Callable[[Context], Awaitable[None] | None]
Offer = tuple[str, str, Callable[[], object]]  # a palette entry: title, group, action


def always(_: Context) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ScreenCommand:
    """A user command. Settings remap it by its `id`; `run` executes it."""

    id: str
    group: str  # in the help and the palette
    title: str
    run: Handler | None  # None: the prompt handles the key itself
    keys: str = ""
    footer: str = ""  # its label in the last line
    priority: bool = False  # also works above dialogs
    palette: bool = True
    chosen: Handler | None = None  # what it does in the palette, if its key does more than its title says
    also: str = ""  # other words for it, which find it in the palette
    greeting: str = ""  # how an empty chat describes it
    enabled: Callable[[Context], bool] = always  # otherwise the palette has no entry, and its key says so


@dataclass(frozen=True, slots=True)
class MessageCommand:
    """A command in the menu of a message."""

    title: str
    run: Callable[[Context, Message], Awaitable[None] | None]
    fits: Callable[[Message], bool] = field(default=lambda _: True)
    when_idle: bool = False  # only while no reply is streaming
    cuts: bool = False  # removes later messages, as its line says; listed last
    asks: bool = False  # asks the engine at once: not offered while it would refuse


@dataclass(frozen=True, slots=True)
class HelpSection:
    """Keys of one place and what they do. `{id id}` is replaced by the keys bound to these ids."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PanelSpec(Generic[W]):
    """A panel beside the chats: how it is made, where it is docked, and what updates it."""

    make: Callable[[Context], W]
    dock: Dock = Dock.DRAWER
    sees: Callable[[W, Snapshot], None] | None = None  # called only while the panel is visible
    line: Callable[[Context], Widget] | None = None  # shown above the prompt while the panel is hidden

    def made(self, context: Context) -> Panel:
        widget, line = self.make(context), self.line(context) if self.line is not None else None
        context.add(widget)
        if line is not None:
            context.add(line)
        return Panel(self.dock, widget, partial(self.sees, widget) if self.sees is not None else None, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Everything the screen needs to include a part; MainScreen depends on nothing else."""

    name: str
    title: str
    commands: tuple[ScreenCommand, ...] = ()
    message_commands: tuple[MessageCommand, ...] = ()
    offers: Callable[[Context], Iterable[Offer]] | None = None  # extra palette entries
    part: Callable[[Context], object | None] | None = None  # made once per screen, with the same lifetime
    panel: PanelSpec[Any] | None = None
    in_pane: Callable[[Context, ChatPane], Widget] | None = None  # below the transcript of each chat
    help: tuple[HelpSection, ...] = ()
    keyed: tuple[tuple[str, type[Widget]], ...] = ()  # widgets with own keys, by the prefix of the ids
    css: str = ""
