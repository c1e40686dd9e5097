"""What the parts of the screen may ask of the program and of the screen they are on."""

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
from minichat.ui.pulse import Pulse
from minichat.ui.transcript import Transcript


class Program(Protocol):
    """What outlives the screen, and what goes to the person or to the engine."""

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
    def pulse(self) -> Pulse: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def start(self) -> Start: ...

    def ask(self, request: Coroutine[object, object, None]) -> None:
        """Something for the engine, for which nobody waits; what cannot be is told."""

    def heard(self, events: Sequence[Event]) -> None:
        """What the engine says."""

    def owner_colours(self, index: int) -> str:
        """The style of a chat's letter, by the chat's number among the colours."""

    def complain(self, sentence: str) -> None: ...

    def complaining(self) -> AbstractContextManager[None]:
        """What the disk refuses is said, and the screen goes on."""

    async def end(self, code: int) -> None:
        """Every reply is saved where it is, then the screen goes, then the engine."""

    def redraw(self) -> None:
        """What something else has written to the terminal goes."""

    def toggle_mouse(self) -> bool:
        """Gives the mouse to the terminal, or takes it back. Whether the program has it now."""

    def copy_theme(self, name: str) -> Path:
        """The theme in use as one of the person's own, and in use then; its file."""

    async def send_to_clipboard(self, text: str) -> None: ...


class Workspace(Protocol):
    """The chats that are seen, the prompt below them, and the lines around them."""

    broadcast: bool  # whether what is sent goes to all chats that are seen
    found: str  # what the first start of all has found here
    greets: bool  # whether a chat in which nothing was said tells where to look
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
        """To whom the next message goes: the active chat, or all that are seen."""

    @property
    def pane(self) -> ChatPane:
        """Of the active chat."""

    @property
    def panes(self) -> list[ChatPane]: ...

    @property
    def transcript(self) -> Transcript:
        """Of the active chat."""

    @property
    def size(self) -> Size: ...

    @property
    def tries(self) -> tuple[str, ...]:
        """Messages to try with the model at hand, in a chat where nothing was said."""

    def lay_out(self) -> None:
        """Who is seen, for this size, these chats and what is open."""

    def label(self) -> None:
        """Tabs, heads of panes, the prompt's border, the keys."""

    def go_to(self, conversation: Conversation) -> None:
        """Another chat that is open."""

    def speak_to(self, conversation: Conversation) -> None:
        """The prompt and the panels are this chat's now."""

    def take_away(self, conversation: Conversation) -> None:
        """A chat that has just been closed."""

    def keep_drafts(self) -> None:
        """What is typed and not sent is written, of every chat."""

    def mount(self, *widgets: Widget, before: Widget | None = None) -> AwaitMount: ...

    def show_snapshot(self, snapshot: Snapshot) -> None: ...

    def forget_requests(self) -> None:
        """Another engine comes, which counts its requests and its tokens anew."""
