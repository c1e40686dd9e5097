"""F1: all keys and what they do. Built from the same tables as the bindings."""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby, zip_longest
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.widgets import Input, Static

from minichat.features.feature import Context, Feature, HelpSection, ScreenCommand
from minichat.settings.keymap import types
from minichat.shell.keys import IDS, Keys, as_set, key_name
from minichat.ui.dialogs.dialog import Dialog

Row = tuple[str, str, str, str]  # keys, what they do, other words for both, and the ids of the bindings
Section = tuple[str, list[Row]]  # title and rows

_KEYS, _FEW_KEYS = 26, 13  # cells
_NARROW = 50  # columns below which the key column shrinks
_GAP = 3  # cells between two columns
_TWO = 2 * 52 + _GAP  # cells needed for two columns
_CHATS = [f"chat.{number}" for number in range(1, 10)]
_LAST = "Terminals and tmux intercept some keys. {program.palette} lists every command."
_NONE = ". {program.palette} lists every command"


class HelpScreen(Dialog[ScreenCommand]):
    """The help, filtered by the typed text. Scrolls if it does not fit; wide screens have two columns.

    Filtered, it also shows the ids of the bindings, which `[keys]` in the settings needs.
    """

    runs_commands = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
    ]

    def __init__(
        self, commands: Sequence[ScreenCommand], sections: Sequence[HelpSection], keys: Keys
    ) -> None:
        super().__init__()
        self._commands, self._sections, self._keys = commands, sections, keys
        self._field = Input(placeholder="type to filter by key, description or id", compact=True)
        self._field.cursor_blink = False
        self._body, self._text = VerticalScroll(can_focus=False), Static()

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet -help") as sheet:
            sheet.border_title = "Help"
            yield self._field
            with self._body:
                yield self._text

    def on_mount(self) -> None:
        self._field.focus()
        self.watch(self._body, "show_vertical_scrollbar", self._note_scrolling)

    def on_key(self, event: Key) -> None:
        """Close, and run the command of a key that the filter has no use for: the help has just shown it."""
        found = next((each for each in self._commands if event.key in self._keys.of(each.id)), None)
        used = types(event.key) or event.key in self._bindings.key_to_bindings or event.key in self.opened_by
        if found and found.run is not None and not used:
            event.stop()
            self.dismiss(found)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)  # the text has its new width then

    def on_input_changed(self, event: Input.Changed) -> None:
        self._body.scroll_home(animate=False)
        self._show()

    def action_scroll(self, lines: int) -> None:
        self._body.scroll_relative(y=lines, animate=False)

    def _show(self) -> None:
        width = self._text.size.width
        typed = self._field.value.lower()
        words = (
            typed.removeprefix("/") or typed
        ).split()  # "/" opens a filter in other programs, and here it is open
        found = [(title, kept) for title, rows in self._all() if (kept := _matching(title, rows, words))]
        column = (width - _GAP) // 2 if width >= _TWO else width
        sections = [_section(title, rows, column, ids=bool(words)) for title, rows in found]
        lines = _columns(sections, column, width)
        if not found:
            text = f"Nothing matches {self._field.value!r}{self._keys.named(_NONE)}"
            lines = [Content.styled(text, "$text-warning")]
        elif not words:
            lines.append(Content.styled(self._keys.named(_LAST), "$text-muted"))
        self._text.update(Content("\n").join(lines))

    def _note_scrolling(self, scrolls: bool) -> None:
        self.query_one(".sheet").border_subtitle = f"{'Up Down scroll  ' if scrolls else ''}Esc close"

    def _all(self) -> Iterable[Section]:
        """The commands by group, then the keys of each place."""
        for group, commands in groupby(self._commands, key=lambda command: command.group):
            rows = [
                (
                    " ".join(map(key_name, keys)),
                    each.title,
                    f"{each.also} {self._written([each.id])}",
                    each.id,
                )
                for each in commands
                if (keys := self._keys.of(each.id)) and not each.id[-1].isdigit()
            ]
            if group == "Chats":
                written = self._written(_CHATS)
                rows.append((self._keys.names(_CHATS), "Go to chat 1-9", written, " ".join(_CHATS)))
            yield group, rows
        for section in self._sections:
            rows = []
            for template, what in section.rows:
                named, ids = self._keys.named(template), " ".join(IDS.findall(template))
                rows.append((named, what, f"{as_set(named)} {self._written(ids.split())}", ids))
            yield self._keys.named(section.title), rows

    def _written(self, ids: Iterable[str]) -> str:
        """The keys as the settings write them, such as ctrl+pagedown; they are shown as ^PgDn."""
        return " ".join(chain.from_iterable(map(self._keys.of, ids)))


def _matching(title: str, rows: Sequence[Row], words: Sequence[str]) -> list[Row]:
    """The rows that contain every word, in the row or its title."""
    return [row for row in rows if all(word in " ".join((title, *row)).lower() for word in words)]


def _section(title: str, rows: Iterable[Row], width: int, *, ids: bool) -> list[Content]:
    """The lines of a section; a long description wraps under its start."""
    lines = [Content.styled(title, "bold $text-primary")]
    room = _KEYS if width >= _NARROW else _FEW_KEYS
    for keys, what, _, named in rows:
        first, *more = wrap(f"{what} ({named})" if ids and named else what, max(width - room - 2, 16))
        if len(keys) >= room:  # the description starts on the next line
            lines.append(Content.styled(f"  {keys}", "bold $text-accent"))
            keys = ""
        lines.append(Content.assemble((f"  {keys:{room}}", "bold $text-accent"), (first, "$text")))
        lines += [Content.styled(f"{'':{room + 2}}{line}", "$text") for line in more]
    return [*lines, Content("")]


def _columns(sections: Sequence[list[Content]], column: int, width: int) -> list[Content]:
    """Stack the sections, or split them into two columns of similar height if they fit."""
    if column == width:
        return list(chain(*sections))
    heights = [len(each) for each in sections]
    # of equal cuts the last one: a single section is in the left column
    cut = min(range(len(sections), -1, -1), key=lambda at: max(sum(heights[:at]), sum(heights[at:])))
    left, right = chain(*sections[:cut]), chain(*sections[cut:])
    return [
        Content.assemble(one, " " * (column + _GAP - one.cell_length), other)
        for one, other in zip_longest(left, right, fillvalue=Content(""))
    ]


def help(context: Context) -> None:
    sections = [section for feature in context.features for section in feature.help]

    async def take(command: ScreenCommand | None) -> None:
        if command is not None:
            await context.run(command)

    context.app.push_screen(HelpScreen(context.commands, sections, context.keys), take)


HELP = Feature(
    name="help",
    title="Help",
    commands=(
        ScreenCommand("view.help", "View", "Show help", help, "f1", "help", also="keys shortcuts bindings"),
    ),
)
