"""The interfaces that the parts of the screen use: the program, and the screen they are on."""

from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from textual.app import App
from textual.geometry import Size
from textual.widget import AwaitMount, Widget

from engine.api.events import Event
from engine.api.snapshot import Snapshot
from minichat.clients.protocol import Backend
from minichat.session.conversation import Conversation
from minichat.session.open_chats import OpenChats
from minichat.settings.schema import Settings
from minichat.shell.keys import Keys
from minichat.shell.paths import Paths
from minichat.start import Start
from minichat.ui.engine_watch import EngineWatch
from minichat.ui.panels import Panels
from minichat.ui.panes.banner import Banner
from minichat.ui.panes.keybar import KeyBar
from minichat.ui.panes.pane import ChatPane
from minichat.ui.panes.prompt import Prompt
from minichat.ui.snapshot_poller import SnapshotPoller
from minichat.ui.transcript import Transcript


class Program(Protocol):
    """What outlives the screen, and the way to the user and to the engine."""

    @property
    def app(self) -> App[object]: ...

    @property
    def backend(self) -> Backend: ...

    @property
    def chats(self) -> OpenChats: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def main(self) -> "Workspace": ...

    @property
    def paths(self) -> Paths: ...

    @property
    def poller(self) -> SnapshotPoller: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def start(self) -> Start: ...

    def ask(self, request: Coroutine[object, object, None]) -> None:
        """Send a request to the engine in the background. An error is shown as a notice."""

    def receive_events(self, events: Sequence[Event]) -> None:
        """Handle events from the engine."""

    def owner_colors(self, index: int) -> str:
        """Return the style of a chat's letter, by the chat's index in the palette."""

    def report(self, sentence: str) -> None: ...

    def end_notice(self, message: str) -> None:
        """Remove the notices with this text."""

    def follow_others(self) -> None:
        """Keep the replies up to date that another screen receives in the visible chats."""

    def reporting_errors(self) -> AbstractContextManager[None]:
        """Show errors of the disk and the store as notices instead of raising them."""

    async def end(self, code: int) -> None:
        """Save what has arrived of each reply, then close the screen, then the engine."""

    def redraw(self) -> None:
        """Redraw the whole screen, over whatever another program has written to the terminal."""

    def toggle_mouse(self) -> bool:
        """Toggle mouse capture. Return whether the program has the mouse now."""

    def copy_theme(self, name: str) -> Path:
        """Copy the current theme to the user's themes and select the copy. Return its file."""

    async def send_to_clipboard(self, text: str) -> None: ...


class Workspace(Protocol):
    """The visible chats, the prompt below them, and the bars around them."""

    sends_to_all: bool  # the prompt sends to all panes
    found: str  # what the first start found on this machine
    shows_greeting: bool  # whether an empty chat shows the greeting
    side_by_side: bool

    @property
    def banner(self) -> Banner: ...

    @property
    def engine(self) -> EngineWatch: ...

    @property
    def keybar(self) -> KeyBar: ...

    @property
    def panels(self) -> Panels: ...

    @property
    def prompt(self) -> Prompt: ...

    @property
    def shown(self) -> list[Conversation]: ...

    @property
    def recipients(self) -> list[Conversation]:
        """The chats that get the next message: the active one, or all visible ones."""

    @property
    def pane(self) -> ChatPane:
        """The one of the active chat."""

    @property
    def panes(self) -> list[ChatPane]: ...

    @property
    def transcript(self) -> Transcript:
        """The one of the active chat."""

    @property
    def size(self) -> Size: ...

    @property
    def tries(self) -> tuple[str, ...]:
        """Sample messages for this model, shown in an empty chat."""

    def lay_out(self) -> None:
        """Choose the visible chats and panels for the screen's size."""

    def label(self) -> None:
        """Update the tabs, the pane headers, the prompt's border and the key bar."""

    def new_chat(self) -> None: ...

    def keep_draft(self) -> None:
        """Store the unsent text with its chat, so that it is restored when the user returns."""

    def go_to(self, conversation: Conversation) -> None:
        """Switch to another open chat."""

    def follow_chat(self, conversation: Conversation) -> None:
        """Make the prompt and the panels follow this chat."""

    def take_away(self, conversation: Conversation) -> None:
        """Remove a chat that has just been closed."""

    def keep_drafts(self, *, soon: bool = False) -> None:
        """Save the unsent texts of every chat: now, or while one is typed `soon`."""

    def mount(self, *widgets: Widget, before: Widget | None = None) -> AwaitMount: ...

    def show_snapshot(self, snapshot: Snapshot) -> None: ...

    def forget_requests(self) -> None:
        """Forget request ids and tokens: a new engine starts counting again."""
