"""The decoding of one chat as a list of fields: arrows turn them, typing sets them, each in force at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, Key
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from engine.errors import BadParams
from engine.params import SamplingParams
from minichat.decoding import KNOBS, PLAIN, Knob, Preset, nudged, parsed, preset_of, shown
from minichat.widgets.marks import UNICODE, Marks

_LABEL = 13  # cells
_STRATEGY, _PRESET = "strategy", "preset"


@dataclass(slots=True)
class Typing:
    """A value while it is typed."""

    text: str


class Knobs(Widget, can_focus=True):
    """Shows only the fields that the strategy uses."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("left", "turn(-1)", show=False),
        Binding("right", "turn(1)", show=False),
        Binding("shift+left", "turn(-10)", show=False),
        Binding("shift+right", "turn(10)", show=False),
        Binding("enter", "type", show=False),
        Binding("backspace", "rub", show=False),
        Binding("delete", "reset", show=False),
        Binding("ctrl+s", "save", show=False),
    ]

    class Turned(Message):
        """The person wants it drawn like this."""

        def __init__(self, params: SamplingParams) -> None:
            super().__init__()
            self.params = params

    class SaveWanted(Message):
        """What is set is to become a preset."""

    params: reactive[SamplingParams] = reactive(PLAIN)
    presets: reactive[tuple[Preset, ...]] = reactive(())
    row: reactive[int] = reactive(0)
    trouble: reactive[str] = reactive("")
    marks: Marks = UNICODE

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._typing: Typing | None = None
        self._temperature = 0.7  # what sampling goes back to

    @property
    def rows(self) -> Sequence[Knob | str]:
        fields = [knob for knob in KNOBS if not (knob.sampling and self.params.greedy)]
        return [_PRESET, _STRATEGY, *fields]

    def render(self) -> Content:
        lines = [self._line(place, row) for place, row in enumerate(self.rows)]
        chosen = self.rows[min(self.row, len(self.rows) - 1)]
        hint = chosen.hint if isinstance(chosen, Knob) else "left and right choose"
        lines.append(Content(""))
        lines.append(
            Content.styled(self.trouble, "$text-error")
            if self.trouble
            else Content.styled(hint, "$text-muted")
        )
        return Content("\n").join(lines)

    def _line(self, place: int, row: Knob | str) -> Content:
        here = place == self.row and self.has_focus
        label = row.label if isinstance(row, Knob) else row
        value = self._value(row)
        if here and self._typing is not None:
            value = f"{self._typing.text}_"
        elif here:
            value = f"{self.marks.left} {value} {self.marks.right}"
        else:
            value = f"  {value}"
        unused = value.strip() == self.marks.unused
        style = "bold $text on $panel" if here else "$text-muted" if unused else "$text"
        line = Content.assemble(
            (f" {label:{_LABEL}}", "$text on $panel" if here else "$text-muted"), (value, style)
        )
        return (
            line.pad_right(max(0, self.size.width - line.cell_length)).stylize_before("on $panel")
            if here
            else line
        )

    def _value(self, row: Knob | str) -> str:
        if isinstance(row, Knob):
            return shown(row, self.params) or self.marks.unused
        if row == _STRATEGY:
            return "greedy" if self.params.greedy else "sampling"
        found = preset_of(self.params, self.presets)
        return found.name if found else "own"

    # Keys

    def action_move(self, by: int) -> None:
        self._commit()
        self.row = (self.row + by) % len(self.rows)

    def action_turn(self, by: int) -> None:
        self._typing, row = None, self.rows[self.row]
        if isinstance(row, Knob):
            if row.step:
                self._set(row, nudged(row, self.params, by))
        elif row == _STRATEGY:
            self._switch()
        elif self.presets:
            found = preset_of(self.params, self.presets)
            place = self.presets.index(found) + by if found else 0 if by > 0 else -1
            self._send(self.presets[place % len(self.presets)].apply(self.params))

    def action_type(self) -> None:
        row = self.rows[self.row]
        if self._typing is not None:
            self._commit()
        elif isinstance(row, Knob):
            self._type(shown(row, self.params))
        else:
            self.action_turn(1)

    def action_rub(self) -> None:
        if self._typing is not None:
            self._type(self._typing.text[:-1])

    def action_reset(self) -> None:
        """The field as the engine has it by itself."""
        self._typing, row = None, self.rows[self.row]
        if isinstance(row, Knob):
            self._set(row, getattr(PLAIN, row.field))

    def action_save(self) -> None:
        self.post_message(self.SaveWanted())

    def on_key(self, event: Key) -> None:
        row = self.rows[self.row]
        if event.key == "escape" and self._typing is not None:
            self._typing = None
            self.refresh()
            event.stop()
        elif isinstance(row, Knob) and event.is_printable and event.character:
            begun = self._typing.text if self._typing else ""
            if row.field == "stop" or begun or event.character in "0123456789.-":
                self._type(begun + event.character)
                event.stop()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return character is not None and character.isprintable()

    def on_click(self, event: Click) -> None:
        if event.y < len(self.rows):
            self._commit()
            self.row = event.y

    def on_blur(self) -> None:
        self._commit()

    def watch_params(self, params: SamplingParams) -> None:
        if not params.greedy:
            self._temperature = params.temperature
        self.trouble = ""
        self.row = min(self.row, len(self.rows) - 1)

    # What comes of them

    def _type(self, text: str) -> None:
        self._typing = Typing(text)
        self.refresh()

    def _commit(self) -> None:
        typing, row = self._typing, self.rows[self.row]
        self._typing = None
        if typing is None or not isinstance(row, Knob):
            return
        self.refresh()
        try:
            self._set(row, parsed(row, typing.text))
        except BadParams as error:
            self.trouble = str(error)

    def _set(self, knob: Knob, value: object) -> None:
        try:
            self._send(self.params.changed(**{knob.field: value}))
        except BadParams as error:
            self.trouble = str(error)

    def _switch(self) -> None:
        self._send(self.params.changed(temperature=self._temperature if self.params.greedy else 0.0))

    def _send(self, params: SamplingParams) -> None:
        self.params = params
        self.post_message(self.Turned(params))
