"""One chat on the screen: a header, the transcript, and the features' widgets below it."""

import time
from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click, DescendantFocus
from textual.message import Message as TextualMessage
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from minichat.chats.model import Message
from minichat.session.conversation import Conversation
from minichat.session.decoding import strategy
from minichat.ui.marks import shortened
from minichat.ui.monitor import figures
from minichat.ui.monitor.figures import token_rate
from minichat.ui.panes.keybar import Hints
from minichat.ui.panes.tabs import titled
from minichat.ui.transcript import Glyphs, Transcript
from minichat.ui.transcript.bindings import FINDING
from minichat.ui.transcript.entry import Spot
from minichat.ui.transcript.view import Place
from minichat.ui.transcript.window import PAUSE

_PAGE = 50  # older messages loaded at a time
_FIGURES_EVERY = 0.5  # seconds
_RATE_AFTER = 0.2  # seconds from the first token; an earlier rate depends on how tokens arrive


class PaneHead(Widget):
    """Letter, title and strategy at the left; the reply's rate at the right."""

    label: reactive[Content] = reactive(Content(""), layout=False)
    figures: reactive[str] = reactive("", layout=False)

    def __init__(self, cut: str) -> None:
        """`cut`: where a label that is too long ends."""
        super().__init__()
        self._cut = cut

    def has_room(self, figures: str) -> bool:
        """Whether the figures fit beside the whole label."""
        return self.label.cell_length + len(figures) + 3 <= self.size.width

    def render(self) -> Content:
        room = self.size.width - len(self.figures) - (3 if self.figures else 1)
        label = shortened(self.label, max(room, 0), self._cut)
        gap = " " * max(0, self.size.width - label.cell_length - len(self.figures) - 1)
        return Content.assemble(label, gap, (self.figures, "$text-muted"), " ")


class ChatTranscript(Transcript):
    """Loads the older messages of its chat before it goes to the first one, and dates them after midnight."""

    # From match to match, and changes of the messages, for who shows a match's number.
    steps: reactive[int] = reactive(0, layout=False)

    def __init__(
        self,
        glyphs: Glyphs,
        read_all: Callable[[], None],
        left_at: tuple[int, Spot] | None,
        unfolded: set[int],
    ) -> None:
        super().__init__(glyphs)
        self._returns_to = left_at
        self._canvas.unfolded = unfolded
        self._read_all = read_all
        self._dated_at = figures.wall_clock()

    @property
    def hints(self) -> Hints:
        return FINDING if self._painter.find is not None else self.HINTS

    @property
    def left_at(self) -> tuple[int, Spot] | None:
        """The message and the line at the top; None while the end is followed."""
        if self.following or not self._view.entries:
            return self._returns_to
        place = self._view.place(self._window.top)
        return place.entry.message.id, place.spot

    def go_back(self) -> None:
        """Scroll once to the line that was at the top, unless a match is shown."""
        if self._returns_to is None or not self.max_scroll_y:
            return  # it is called again with messages and a size
        message, spot = self._returns_to
        if not any(each.message.id == message for each in self._view.entries):
            self._read_all()
        entry = next((each for each in self._view.entries if each.message.id == message), None)
        if entry is not None and not self._window.revealed:
            if not self._window.read(entry):
                self.set_timer(PAUSE, self.go_back)
                return
            self._window.begin_at(Place(entry, spot))
        self._returns_to = None

    def on_resize(self) -> None:
        self.call_after_refresh(self.go_back)

    def on_mount(self) -> None:
        self.set_interval(figures.CALENDAR_EVERY, self._look_at_calendar)

    def _look_at_calendar(self) -> None:
        """Messages of today have no date in their headers."""
        if figures.day(self._dated_at):
            self._dated_at = figures.wall_clock()
            self.refresh()

    def show_taken(self, taken: str) -> None:
        """Show whether the engine has taken the blocks of the running reply, as `RunningReply.taken`."""
        if self._view.streaming and (entry := self._last("show_taken")).taken != taken:
            entry.taken = taken
            self._view.changed(entry)
            self._window.arrange(self._view.top(entry))

    def action_scroll_home(self) -> None:
        self._read_all()
        super().action_scroll_home()

    def action_select_everything(self) -> None:
        self._read_all()
        super().action_select_everything()

    def find_next(self, by: int = 1) -> bool:
        found = super().find_next(by)
        self.steps += 1
        return found


class ChatPane(Vertical):
    """Shows a conversation. The user's actions go to the screen as messages of the transcript."""

    class Activated(TextualMessage):
        """The user clicked or focused this pane."""

        def __init__(self, conversation: Conversation) -> None:
            super().__init__()
            self.conversation = conversation

    class Clicked(Activated):
        """The user clicked the transcript, or selected some of its text."""

    def __init__(
        self,
        conversation: Conversation,
        glyphs: Glyphs,
        below: Sequence[Callable[["ChatPane"], Widget]],
        left_at: tuple[int, Spot] | None,
        unfolded: set[int],
    ) -> None:
        """`below`: widgets of features for each pane. `left_at`: of the chat's pane before.

        `unfolded`: the messages whose reasoning is shown, of all panes.
        """
        super().__init__()
        self.conversation = conversation
        self._figured = 0.0
        self._taken = ""  # `taken` of the running reply in the last snapshot
        self._below = below
        self.head = PaneHead(glyphs.cut)
        self.transcript = ChatTranscript(glyphs, self._read_all, left_at, unfolded)
        self.divergence = Static(classes="divergence")

    def compose(self) -> ComposeResult:
        yield self.head
        yield self.transcript
        self.divergence.display = False
        yield self.divergence
        yield from (make(self) for make in self._below)

    def on_mount(self) -> None:
        self.conversation.view = self
        self.show_messages()
        self.watch(self.transcript, "scroll_y", self._reach_back, init=False)
        self.transcript.call_after_refresh(self.transcript.go_back)

    def on_unmount(self) -> None:
        if self.conversation.view is self:
            self.conversation.view = None

    def _reach_back(self, top: float) -> None:
        """Load older messages when the user reaches the top."""
        if top <= 0 and not self.transcript.following:
            self.read_older(_PAGE)

    def _read_all(self) -> None:
        self.read_older(self.conversation.chat.earlier)

    def read_older(self, count: int) -> None:
        if older := self.conversation.read_older(count):
            self.transcript.prepend(older)

    # Calls from the conversation

    def show_messages(self) -> None:
        self.transcript.show(self.conversation.messages, self.conversation.chat.letter.upper())
        self.show_divergence(None)
        self.show_figures()

    def add_message(self, message: Message) -> None:
        if message.role == "user":
            self.show_divergence(None)
        self.transcript.append(message)
        self.show_figures()

    def add_text(self, text: str, tail: str, *, reasoning: bool = False) -> None:
        run = self.conversation.run
        beams = run is not None and run.searching
        self.transcript.extend(text, tail, reasoning=reasoning, beams=beams)
        # The header is far from the newest line: one frame with both would redraw all lines between them.
        self._show_figures_in_turn()

    def see_snapshot(self) -> None:
        """Update the figures of a reply that gets no text, and at once if the engine takes its blocks."""
        if (run := self.conversation.run) is not None:
            self._show_figures_in_turn(at_once=run.taken != self._taken)
            self._taken = run.taken
            self.transcript.show_taken(run.taken)

    def _show_figures_in_turn(self, *, at_once: bool = False) -> None:
        if (now := time.monotonic()) - self._figured >= _FIGURES_EVERY or at_once:
            self._figured = now
            self.show_figures()

    def settle_message(self, message: Message) -> None:
        self.transcript.settle(message)
        self.show_figures()

    def show_label(self, colors: str, *, active: bool) -> None:
        chat = self.conversation.chat
        self.head.label = Content.assemble(
            (f" {chat.letter.upper()} ", f"bold {colors}"),
            (f" {titled(chat.title)} ", "bold $text" if active else "$text-muted"),
            (
                f" {strategy(chat.params, chat.adapter, new=self.conversation.services.defaults)}",
                "$text-muted",
            ),
        )
        self.transcript.set_letter(chat.letter.upper())
        self.set_class(active, "-active")

    def show_figures(self) -> None:
        """Update the figures of the running reply, and the number of a match: the messages have changed."""
        self.head.figures = self._figures()
        self.transcript.steps += 1

    def _figures(self) -> str:
        if (run := self.conversation.run) is None:
            return ""
        if run.first is None:
            return run.doing
        stats = run.stats_so_far(self.conversation.services.clock())
        settled = stats.seconds - stats.ttft >= _RATE_AFTER
        rate = run.taken or (token_rate(stats.rate) if settled else "")
        count = f"{stats.tokens:,} tok" if self.size.width >= 40 or not rate else ""
        figures = "  ".join(filter(None, (rate, count)))
        more = f"{figures}  {stats.blocks:,} blk"
        return more if stats.blocks and self.head.has_room(more) else figures

    def show_divergence(self, sentence: Content | None) -> None:
        """Show where this reply diverges from those beside it; None hides the line."""
        if sentence is not None or self.divergence.display:
            self.divergence.display = sentence is not None
            self.divergence.update(sentence or "")

    # Actions

    def scroll(self, pages: int) -> None:
        """Scroll by pages; 0 goes to the end and follows it."""
        if not pages:
            self.transcript.follow()
        elif pages < 0 and self.transcript.scroll_y <= 0:
            self.read_older(_PAGE)
        self.transcript.scroll_relative(y=pages * (self.transcript.size.height - 1), animate=False)

    def on_click(self, event: Click) -> None:
        clicked = event.widget is self.transcript
        self.post_message((self.Clicked if clicked else self.Activated)(self.conversation))

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        self.post_message(self.Activated(self.conversation))
