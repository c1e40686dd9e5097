"""The tokens of a reply in a line, colored by probability, and the alternatives at one of them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from minichat.ui.likely import Likely, row_of, seen_as
from minichat.ui.marks import UNICODE, Marks
from minichat.ui.panes.keybar import Hints, HintsChanged

_HEAT = " ▁▂▃▄▅▆▇█"
_PLAIN_HEAT = " 123456789"
_LONGEST = 16  # maximum width of a token, in cells
_LINES = 3  # lines above the candidates
_UNLIKELY, _LIKELY = 0.2, 0.6
_KEYS = (  # the longest that fits is shown
    "Enter: continue from here in a fork  Esc done",
    "Enter: continue in a fork  Esc done",
)
_KEYS_IN_TROUBLE = ("Esc done",)


class TokenPicker(Widget, can_focus=True):
    """Displays texts and probabilities; independent of where they come from."""

    HINTS: ClassVar[Hints] = (
        ("tokens.left tokens.right", "token"),
        ("tokens.up tokens.down", "candidate"),
        ("Enter", "continue in a fork"),
        ("Esc", "done"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Previous token", id="tokens.left", show=False),
        Binding("right", "move(1)", "Next token", id="tokens.right", show=False),
        Binding("shift+left,pageup", "move(-10)", "Ten tokens back", id="tokens.far_left", show=False),
        Binding("shift+right,pagedown", "move(10)", "Ten tokens forward", id="tokens.far_right", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("up", "choose(-1)", "Previous candidate", id="tokens.up", show=False),
        Binding("down", "choose(1)", "Next candidate", id="tokens.down", show=False),
        Binding("enter", "take", show=False),
        Binding("escape", "leave", show=False),
    ]

    class Action(Message):
        """A user action."""

    class Moved(Action):
        """The user moved to another token, or the visible tokens have changed."""

        def __init__(self, at: int) -> None:
            super().__init__()
            self.at = at

    class CandidateChosen(Action):
        """The user chose this candidate."""

        def __init__(self, choice: int) -> None:
            super().__init__()
            self.choice = choice

    class Closed(Action):
        """The user closed the line."""

    words: reactive[Sequence[str]] = reactive((), layout=False)
    shares: reactive[Sequence[float | None]] = reactive((), layout=False)
    rows: reactive[tuple[Likely, ...]] = reactive((), layout=False)
    at: reactive[int] = reactive(0, layout=False)
    choice: reactive[int] = reactive(0, layout=False)
    probability: reactive[str] = reactive("", layout=False)  # the probability of the current token
    trouble: reactive[str] = reactive("", layout=False)
    marks: Marks = UNICODE

    @property
    def hints(self) -> Hints:
        """The keys that do something: without candidates, none can be chosen."""
        token, *choice, done = self.HINTS
        return (token, *([] if self._stuck else choice), done)

    @property
    def _stuck(self) -> bool:
        """Whether the engine has refused to name candidates."""
        return bool(self.trouble) and not self.rows

    def watch_trouble(self) -> None:
        self.post_message(HintsChanged())

    def render(self) -> Content:
        if not self.words:
            return Content.styled("reading the tokens of the reply ...", "$text-muted")
        lines = [self._head(), *self._line()]
        if self.trouble:
            lines.append(Content.styled(self.trouble, "$text-error"))
        elif not self.rows:
            lines.append(Content.styled("computing the alternatives ...", "$text-muted"))
        first = self._first_row
        for place, row in list(enumerate(self.rows))[first : first + self._room]:
            lines.append(row_of(row, self.marks, self.size.width, here=place == self.choice))
        return Content("\n").join(lines)

    @property
    def _room(self) -> int:
        """Lines for candidates."""
        return max(self.size.height - _LINES, 1)

    @property
    def _first_row(self) -> int:
        """The first visible candidate."""
        return max(0, min(self.choice - self._room + 1, len(self.rows) - self._room))

    def _head(self) -> Content:
        left = Content.assemble(
            (f"token {self.at + 1} of {len(self.words)}", "bold $text-primary"),
            (f"  {self.probability}", "$text"),
        )
        room = self.size.width - left.cell_length
        fitting = _KEYS_IN_TROUBLE if self._stuck else _KEYS
        keys = next((each for each in fitting if len(each) + 2 <= room), "")
        return Content.assemble(left, " " * (room - len(keys)), (keys, "$text-muted")) if keys else left

    def seen(self) -> range:
        """The tokens around the current one that fit."""
        room = self.size.width - self._cells(self.at)
        low, high = self.at, self.at + 1
        grown = True
        while grown:
            grown = False
            if high < len(self.words) and self._cells(high) <= room:
                room, high, grown = room - self._cells(high), high + 1, True
            if low and self._cells(low - 1) <= room:
                room, low, grown = room - self._cells(low - 1), low - 1, True
        return range(low, high)

    def _line(self) -> tuple[Content, Content]:
        """The text, and a bar for each token below it."""
        heat = _HEAT if self.marks is UNICODE else _PLAIN_HEAT
        texts: list[tuple[str, str]] = []
        bars: list[tuple[str, str]] = []
        for place in self.seen():
            share, text = self.shares[place], self._word(place)
            color = _color(share)
            texts.append((text, f"bold {color} reverse" if place == self.at else color))
            level = " " if share is None else heat[min(max(int(share * len(heat)), 1), len(heat) - 1)]
            bars.append((level * cell_len(text), color))
        return Content.assemble(*texts), Content.assemble(*bars)

    def _word(self, place: int) -> str:
        """The visible form of a token, never empty, so that the cursor has a cell."""
        word = seen_as(self.words[place], self.marks) or self.marks.blank
        return word if cell_len(word) <= _LONGEST else word[: _LONGEST // 2 - 1] + self.marks.ellipsis

    def _cells(self, place: int) -> int:
        return cell_len(self._word(place))

    def on_resize(self) -> None:
        """Report that other tokens are visible."""
        if self.words:
            self.post_message(self.Moved(self.at))

    # User actions

    def action_move(self, by: int) -> None:
        at = min(max(self.at + by, 0), len(self.words) - 1)
        if at != self.at and self.words:
            self.at = at
            self.post_message(self.Moved(at))

    def action_choose(self, by: int) -> None:
        if self.rows:
            self.choice = min(max(self.choice + by, 0), len(self.rows) - 1)

    def action_take(self) -> None:
        if self.rows:
            self.post_message(self.CandidateChosen(self.choice))

    def on_click(self, event: Click) -> None:
        """Go to the token or the candidate under the pointer."""
        if not self.words or (at := event.get_content_offset(self)) is None:
            return
        if 0 < at.y < _LINES:
            edges = accumulate(map(self._cells, seen := self.seen()))
            place = next((place for place, end in zip(seen, edges, strict=True) if at.x < end), self.at)
            self.action_move(place - self.at)
        elif at.y >= _LINES and not self.trouble:
            self.action_choose(self._first_row + at.y - _LINES - self.choice)

    def action_leave(self) -> None:
        self.post_message(self.Closed())


def _color(share: float | None) -> str:
    if share is None:
        return "$text-muted"
    return "$text-error" if share < _UNLIKELY else "$text-warning" if share < _LIKELY else "$text-success"
