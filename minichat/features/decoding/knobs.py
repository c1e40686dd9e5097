"""The decoding settings of a chat as a list of fields. Arrows or typing change a value immediately."""

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, Key, MouseScrollDown, MouseScrollUp
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from engine.api.errors import BadParams
from engine.api.params import SamplingParams
from minichat.features.decoding.preset_ring import next_in
from minichat.features.decoding.typed_value import TypedValue, misfit, typing_hint
from minichat.session.decoding import (
    KNOBS,
    PLAIN,
    Knob,
    Preset,
    chats_own,
    covered_by,
    in_words,
    parsed,
    preset_of,
    shown,
    stepped,
)
from minichat.session.strategies import Strategies, between, name_of
from minichat.settings.presets import DEFAULT, OWN
from minichat.ui.marks import UNICODE, Marks
from minichat.ui.monitor.shades import mixes
from minichat.ui.panes.keybar import Hints, HintsChanged

_LABEL = 13  # cells
_NOTE = 2  # lines at the end for a hint or an error; a long error has more
_ERASES = {"ctrl+u": "all", "ctrl+w": "word"}  # as in other fields of one line
_STRATEGY, _PRESET = "strategy", "preset"


class Knobs(Widget, can_focus=True):
    """Shows only the fields that the current strategy uses, and the selected one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Previous field", id="decoding.up", show=False),
        Binding("down", "move(1)", "Next field", id="decoding.down", show=False),
        Binding("left", "change(-1)", "Decrease a value", id="decoding.less", show=False),
        Binding("right", "change(1)", "Increase a value", id="decoding.more", show=False),
        Binding("shift+left", "change(-10)", "Decrease by ten steps", id="decoding.much_less", show=False),
        Binding("shift+right", "change(10)", "Increase by ten steps", id="decoding.much_more", show=False),
        Binding("enter", "type", show=False),
        Binding("backspace", "erase('character')", show=False),
        Binding("delete", "reset", show=False),
        Binding("ctrl+s", "save", show=False),
    ]

    class Changed(Message):
        """The user changed the parameters of the chat that has these strategies."""

        def __init__(self, params: SamplingParams, strategies: Strategies) -> None:
            super().__init__()
            self.params, self.strategies = params, strategies

    class Refused(Message):
        """A value that was typed for the chat that has these strategies is invalid."""

        def __init__(self, why: str, strategies: Strategies) -> None:
            super().__init__()
            self.why, self.strategies = why, strategies

    class SaveRequested(Message):
        """The user wants to save the settings as a preset."""

    class DeleteRequested(Message):
        """The user wants to delete a preset."""

    class GrammarRequested(Message):
        """The user wants to enter a grammar."""

    params: reactive[SamplingParams] = reactive(PLAIN, layout=True)
    presets: reactive[tuple[Preset, ...]] = reactive(())
    own: reactive[frozenset[str]] = reactive(frozenset())  # the names of the presets that can be deleted
    kinds: reactive[tuple[str, ...]] = reactive(())  # speculation kinds of the engine; empty: unknown
    row: reactive[int] = reactive(0, layout=True)
    trouble: reactive[str] = reactive("", layout=True)
    _typing: reactive[TypedValue | None] = reactive[TypedValue | None](None)
    marks: Marks = UNICODE
    default = PLAIN  # what a new chat has
    move_keys = ""  # the names of the keys that select a field

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.strategies = Strategies()  # of the shown chat
        self._here: Knob | str = _PRESET  # the selected field; it stays, even if the strategy turns it off

    @property
    def rows(self) -> Sequence[Knob | str]:
        return [_PRESET, _STRATEGY, *(it for it in KNOBS if it.used(self.params) or it is self._here)]

    @property
    def hints(self) -> Hints:
        """The keys of the selected field, for the key bar."""
        if self._typing is not None:
            return ("Enter", "accept"), ("Esc", "cancel")
        return (
            ("decoding.up decoding.down", "field"),
            *([("decoding.less decoding.more", "change")] if _turned(self._here) else []),
            *typing_hint(self._here),
            ("^S", "save"),
            ("Esc", "close"),
        )

    @property
    def lines(self) -> int:
        """The height at which all fields are visible."""
        return len(self.rows) + len(self._note)

    @property
    def _note(self) -> list[str]:
        """The lines of the error, or of the hint for the selected field."""
        text = self.trouble or self._hint(self._here)
        lines = wrap(text, max(self.size.width, 8))
        return [*[""] * (_NOTE - len(lines)), *lines]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.lines

    def render(self) -> Content:
        style, seen = "$text-error" if self.trouble else "$text-muted", self._shown()
        note = [Content.styled(line, style) for line in self._note]
        lines = [self._line(place, self.rows[place]) for place in seen]
        return Content("\n").join([*lines, *self._more(seen), *note])

    def _hint(self, row: Knob | str) -> str:
        if not self.has_focus:
            return ""  # the keys go to the prompt
        if isinstance(row, Knob):
            return row.hint
        if row == _STRATEGY:
            return "Left or Right chooses another"
        return "Left or Right chooses" + ("; Delete deletes" if self.preset in self.own else "")

    def _shown(self) -> range:
        """The rows that fit, including the selected one."""
        room = max(self.size.height - len(self._note), 1)
        if room < len(self.rows):
            room = max(room - 1, 1)  # one line counts the hidden fields
        first = max(0, min(self.row - room // 2, len(self.rows) - room))
        return range(first, min(first + room, len(self.rows)))

    def _more(self, seen: range) -> Sequence[Content]:
        """A line that counts the fields hidden above and below and names the keys that reach them."""
        above, below = seen.start, len(self.rows) - seen.stop
        if not above + below or len(seen) + len(self._note) >= self.size.height:
            return ()
        signs = (self.marks.above if above else "", self.marks.below if below else "")
        counts = f"{above + below} more"
        words = f" {''.join(signs)} {counts:{_LABEL - len(''.join(signs)) - 1}}  {self.move_keys}"
        return (Content.styled(words, "$text-accent"),)

    def _line(self, place: int, row: Knob | str) -> Content:
        here = place == self.row and self.has_focus
        label = row.label if isinstance(row, Knob) else row
        value = self._clipped(self._value(row))
        typing = self._typing if here else None
        if typing is not None:
            value = f"{typing.text}_"
        elif here:
            value = f"{self.marks.left} {value} {self.marks.right}"
        else:
            value = f"  {value}"
        unused = value.strip() == self.marks.unused
        style = "bold $text on $panel" if here else "$text-muted" if unused else "$text"
        line = Content.assemble(
            (f" {label:{_LABEL}}", "$text on $panel" if here else "$text-muted"), (value, style)
        )
        if typing is not None and typing.selected:
            line = line.stylize("reverse underline", -len(value), -1)
        if not here:
            return line
        whole = line.pad_right(max(0, self.size.width - line.cell_length)).stylize_before("on $panel")
        return whole if mixes(self.app) else whole.stylize("reverse")

    def _clipped(self, value: str) -> str:
        room = max(self.size.width - _LABEL - 5, 8)
        return value if len(value) <= room else value[: room - 1] + self.marks.ellipsis

    def _value(self, row: Knob | str) -> str:
        if isinstance(row, Knob):
            return shown(row, self.params) or self.marks.unused
        return name_of(self.params) if row == _STRATEGY else self.preset

    @property
    def preset(self) -> str:
        """The name of the preset that matches the parameters."""
        found = preset_of(self.params, self._named())
        return found.name if found else OWN

    def _named(self) -> tuple[Preset, ...]:
        """The presets, and last the settings of a new chat."""
        return (*self.presets, Preset.own(self.default, DEFAULT))

    # Keys

    def action_move(self, by: int) -> None:
        self._select((self.row + by) % len(self.rows))

    def action_change(self, by: int) -> None:
        self._typing, row = None, self._here
        if isinstance(row, Knob):
            if row.choices:
                self._choose(row, 1 if by > 0 else -1)
            elif row.step:
                self._set(row, stepped(row, self.params, by))
        elif row == _STRATEGY:
            self._switch(1 if by > 0 else -1)
        elif self.presets:
            self._turn_preset(by)

    def _turn_preset(self, by: int) -> None:
        """Cycle through the presets; the last entry is the user's unsaved settings."""
        unsaved, named = self.strategies.own, self._named()
        ring = [*named, *([Preset.own(unsaved)] if unsaved is not None else [])]
        found = preset_of(self.params, named)
        place, by = ring.index(found) if found else len(named), 1 if by > 0 else -1
        try:
            own = chats_own(self.params, found, self.strategies, self.default)
        except BadParams as error:
            self._refuse(error)
            return
        params, forbidden = next_in(ring, named, place, by, own)
        if params is not None:
            self.strategies.covered = covered_by(params, own)
            self._send(params)
        self.trouble = forbidden

    def action_type(self) -> None:
        row = self._here
        if self._typing is not None:
            self.commit()
        elif isinstance(row, Knob) and row.field == "grammar":
            self.post_message(self.GrammarRequested())
        elif isinstance(row, Knob) and not row.choices:
            self._type(shown(row, self.params), selected=True)
        else:
            self.action_change(1)

    def action_erase(self, what: str) -> None:
        row = self._here
        if self._typing is not None:
            self._type(self._typing.erased(what))
        elif what != "word" and isinstance(row, Knob) and _typed(row):
            self._type("")
        elif what == "character" and isinstance(row, Knob):
            self.action_reset()

    def action_reset(self) -> None:
        """Unset the field; one that always has a value gets that of a new chat. Or ask to delete a preset."""
        self._typing, row = None, self._here
        if isinstance(row, Knob):
            self._set(row, getattr(self.default if shown(row, PLAIN) else PLAIN, row.field))
        elif row == _STRATEGY:
            self._switch(between(self.params, self.default))
        elif row == _PRESET:
            self.post_message(self.DeleteRequested())

    def action_save(self) -> None:
        self.post_message(self.SaveRequested())

    def on_key(self, event: Key) -> None:
        if event.key == "escape" and self._typing is not None:
            self._typing, self.trouble = None, ""
            event.stop()
        elif event.key == "end" and self._typing is not None:
            self._type(self._typing.text)
            event.stop()
        elif event.key in _ERASES:
            self.action_erase(_ERASES[event.key])
            event.stop()
        elif event.character and self.check_consume_key(event.key, event.character):
            before = self._typing.text if self._typing and not self._typing.selected else ""
            self._type(before + event.character)
            event.stop()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Whether it is typed into the selected field. Other letters go to the prompt."""
        row = self._here
        if not (isinstance(row, Knob) and _typed(row) and character and character.isprintable()):
            return False
        return row.field == "stop" or self._typing is not None or character in "0123456789.-"

    def on_click(self, event: Click) -> None:
        if event.y < len(shown := self._shown()):
            again = shown[event.y] == self.row and self._typing is None
            line = self._line(self.row, self._here).plain.rstrip()
            self._select(shown[event.y])
            if again and event.x in (_LABEL + 1, len(line) - 1) and line.endswith(self.marks.right):
                self.action_change(1 if event.x > _LABEL + 1 else -1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self._select(max(self.row - 1, 0))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self._select(min(self.row + 1, len(self.rows) - 1))

    def on_blur(self) -> None:
        self.commit()

    def show_params(self, params: SamplingParams, strategies: Strategies) -> None:
        """Show a chat's settings and its strategies. A value being typed goes to the chat shown before."""
        if strategies is not self.strategies:
            self.commit()
            self.trouble = ""
        self.strategies, self.params = strategies, params
        self._remember(params)  # the watcher does not run if both chats have the same parameters

    def _remember(self, params: SamplingParams) -> None:
        self.strategies.observe(params)
        if preset_of(params, self._named()) is None:
            self.strategies.own = params

    def watch_row(self) -> None:
        self._here = self.rows[self.row]
        self.row = self.rows.index(self._here)  # the field selected before may be hidden now
        self.post_message(HintsChanged())

    watch__typing = watch_row

    def watch_params(self, params: SamplingParams) -> None:
        self._remember(params)
        self.trouble = ""
        self.row = self.rows.index(self._here)

    # Applying changes

    def _type(self, text: str, *, selected: bool = False) -> None:
        self._typing, self.trouble = TypedValue(text, selected), misfit(self._here, text)

    def commit(self) -> None:
        """Apply the value being typed."""
        typing, row = self._typing, self._here
        self._typing, self.trouble = None, ""
        if typing is None or not isinstance(row, Knob):
            return
        try:
            self._set(row, parsed(row, typing.text))
        except BadParams as error:
            self._refuse(error)
        if self.trouble:
            self.post_message(self.Refused(self.trouble, self.strategies))

    def _set(self, knob: Knob, value: object) -> None:
        try:
            self._send(self.params.changed(**{knob.field: value}))
        except BadParams as error:
            self._refuse(error)

    def _choose(self, knob: Knob, by: int) -> None:
        """Select the next choice, skipping speculation kinds the engine lacks."""
        if knob.field == "speculate" and self.kinds:
            there = ("", *self.kinds, self.params.speculate)
            knob = replace(knob, choices=tuple(each for each in knob.choices if each[0] in there))
        self._set(knob, stepped(knob, self.params, by))

    def _switch(self, by: int) -> None:
        try:
            self._send(self.strategies.with_strategy(self.params, by))
        except BadParams as error:
            self._refuse(error)

    def _select(self, row: int) -> None:
        """Select a field. The error of another one goes, unless it is in the value just left."""
        self.commit()
        self.row = row

    def _refuse(self, error: BadParams) -> None:
        """Show why a change is refused."""
        self.trouble = in_words(error)

    def _send(self, params: SamplingParams) -> None:
        self.params, self.trouble = params, ""
        self.post_message(self.Changed(params, self.strategies))


def _typed(knob: Knob) -> bool:
    """Whether the value is typed in place."""
    return not knob.choices and knob.field != "grammar"


def _turned(row: Knob | str) -> bool:
    """Whether Left and Right change it."""
    return not isinstance(row, Knob) or bool(row.choices or row.step)
