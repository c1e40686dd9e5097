"""F1: every key, and what is where. Made of the same table as the keys themselves."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from minichat.features.feature import Command, Context, Feature, HelpSection
from minichat.shell.keys import Keys, key_name
from minichat.ui.dialogs.dialog import Dialog

_KEYS, _FEW_KEYS = 26, 13  # cells
_NARROW = 50  # columns below which the keys have fewer
_IDS = re.compile(r"\{([\w. ]+)\}")  # of bindings, in whose place their keys are shown
_CHATS = [f"chat.{number}" for number in range(1, 10)]


class HelpScreen(Dialog[None]):
    """Scrolls where the terminal is small."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "leave", show=False)]

    def __init__(self, commands: Sequence[Command], sections: Sequence[HelpSection], keys: Keys) -> None:
        super().__init__()
        self._commands, self._sections, self._keys = commands, sections, keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet -help") as sheet:
            sheet.border_title, sheet.border_subtitle = "Help", "Up Down scroll  Esc leave"
            yield Static()

    def on_resize(self) -> None:
        text = self.query_one(Static)
        text.update(self._text(text.size.width))

    def _text(self, width: int) -> Content:
        lines: list[Content] = []
        for group, commands in groupby(self._commands, key=lambda command: command.group):
            rows = [
                (" ".join(map(key_name, keys)), each.title)
                for each in commands
                if (keys := self._keys.of(each.id)) and not each.id[-1].isdigit()
            ]
            if group == "Chats":
                rows.append((self._keys.names(_CHATS), "Go to a chat"))
            lines += self._section(group, rows, width)
        for section in self._sections:
            rows = [(self._named(keys), what) for keys, what in section.rows]
            lines += self._section(self._named(section.title), rows, width)
        lines += [
            Content.styled(
                self._named(
                    "Terminals and tmux keep some keys to themselves: {program.palette} has every command."
                ),
                "$text-muted",
            )
        ]
        return Content("\n").join(lines)

    def _named(self, text: str) -> str:
        """With the keys that the person has, where bindings stand."""
        return _IDS.sub(lambda found: self._keys.names(found[1].split()), text)

    def _section(self, title: str, rows: Iterable[tuple[str, str]], width: int) -> list[Content]:
        """What a key does goes on below where it began."""
        lines = [Content.styled(title, "bold $text-primary")]
        room = _KEYS if width >= _NARROW else _FEW_KEYS
        for keys, what in rows:
            first, *more = wrap(what, max(width - room - 2, 16))
            if len(keys) >= room:  # what they do stands below them
                lines.append(Content.styled(f"  {keys}", "bold $text-accent"))
                keys = ""
            lines.append(Content.assemble((f"  {keys:{room}}", "bold $text-accent"), (first, "$text")))
            lines += [Content.styled(f"{'':{room + 2}}{line}", "$text") for line in more]
        return [*lines, Content("")]


def help(context: Context) -> None:
    sections = [section for feature in context.features for section in feature.help]
    context.app.push_screen(HelpScreen(context.commands, sections, context.keys))


HELP = Feature(
    name="help",
    title="Help",
    commands=(Command("view.help", "View", "Help: keys and what is where", help, "f1", "help"),),
)
