"""The decoding drawer: how this chat's replies are sampled, and the likeliest next tokens."""

from typing import ClassVar, Self

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from engine.api.snapshot import BeamsView
from engine.api.speculation import Speculation
from minichat.features.decoding.beam_tree import Words
from minichat.features.decoding.beams import BeamTree
from minichat.features.decoding.knobs import Knobs
from minichat.ui.likely import ROWS, LikelyTokens
from minichat.ui.marks import Marks

_LIVE = 5  # minimum lines for the live part: likeliest tokens or beams; with nothing to show it gets one
_TREE = 24  # maximum lines of a beam tree
_FIELDS = 14  # lines the fields get before the live part grows
_GAINS = 37  # cells of the line about speculation
_HEADING = 3  # lines of the heading and its margins; one of them is above the fields


class DecodingDrawer(VerticalScroll, can_focus=False):
    """A drawer beside the chats, for the active chat."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    class LeaveRequested(Message):
        """Focus should return to the prompt."""

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.knobs, self.likely, self.beams = Knobs(), LikelyTokens(), BeamTree()
        self.gains, self.heading = Static(classes="gains", markup=False), Static(classes="section")
        self._live = False  # whether the live part has something to show
        self._past = False  # ... of a reply that has ended

    def compose(self) -> ComposeResult:
        yield self.knobs
        self.gains.display = self.beams.display = False
        yield self.gains
        yield self.heading
        yield self.likely
        yield self.beams

    def focus(self, scroll_visible: bool = True) -> Self:
        """Focus the fields."""
        self.knobs.focus(scroll_visible)
        return self

    def obey(self, marks: Marks) -> None:
        self.knobs.marks = self.likely.marks = self.beams.marks = marks

    def on_mount(self) -> None:
        self.watch(self.knobs, "params", self.on_resize, init=False)  # a strategy has fields of its own

    def on_resize(self) -> None:
        """Divide the height. A live part with nothing new to show leaves, if the fields need its lines. The
        fields scroll if they do not fit above it.
        """
        room = self.size.height - _HEADING - self.gains.display
        live = max(room - _FIELDS, _LIVE) if self._live else 1
        fits = self.knobs.lines + (_LIVE if self._live else 1) <= room
        self.heading.display = fits or (self._live and not self._past)
        if not self.heading.display:
            room, live = room + _HEADING - 1, 0
        self.likely.styles.height, self.beams.styles.height = min(live, ROWS), min(live, _TREE)
        self.knobs.styles.max_height = max(room - min(live, ROWS), 4)

    def show_search(
        self, searching: bool, view: BeamsView | None, words: Words, *, over: bool = False
    ) -> None:
        """Show the beam tree of a search, or otherwise the likeliest tokens; if `over`, the last ones."""
        live, past = bool(view if searching else self.likely.rows), over and not searching
        heading = "beam tree" if searching else "last token" if live and past else "next token"
        if str(self.heading.content) != heading:
            self.beams.display, self.likely.display = searching, not searching
            self.heading.update(heading)
        self.beams.show(view, words, over=over)
        if (self._live, self._past) != (live, past):
            self._live, self._past = live, past
            self.on_resize()

    def show_gains(self, speculation: Speculation | None, *, over: bool) -> None:
        """Show what speculation brings the running reply, or brought the last one."""
        shown = speculation is not None
        if self.gains.display is not shown:
            self.gains.display = shown
            self.on_resize()
        if speculation is not None:
            self.gains.update(gains(speculation, over=over))

    def action_leave(self) -> None:
        self.post_message(self.LeaveRequested())


def gains(speculation: Speculation, *, over: bool = False) -> str:
    """The result of speculation in one line of the drawer. `over`: of a reply that has ended."""
    if not speculation.verifications:
        if over:
            return f"last reply: {'nothing drafted' if speculation.on else 'paused, no gain before'}"
        return "nothing drafted yet" if speculation.on else "paused: no gain lately"
    share, paused = f"{speculation.acceptance:.0%}", not speculation.on and not over
    share = f"last reply: {share}" if over else share if paused else f"{share} accepted"
    words = f"{share}  {speculation.tokens_a_step:.1f} tok/step"
    if speculation.gain:
        forms = [f"{words}  {speculation.gain:.{digits}f}x" for digits in (2, 1, 0)]
        words = next((each for each in forms if len(each) <= _GAINS), forms[-1])
    return f"{words}  paused" if paused else words
