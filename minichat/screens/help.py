"""F1: every key, and what is where. Made of the same table as the keys themselves."""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from minichat.keys import COMMANDS, key_name, keys_of, names_of
from minichat.screens.dialog import Dialog

_KEYS, _FEW_KEYS = 26, 13  # cells
_NARROW = 50  # columns below which the keys have fewer
_IDS = re.compile(r"\{([\w. ]+)\}")  # of bindings, in whose place their keys are shown
_CHATS = [f"chat.{number}" for number in range(1, 10)]
_PANES = " ".join(f"monitor.pane_{number}" for number in range(1, 6))
_SELECT = " ".join(f"transcript.select_{way}" for way in ("left", "right", "up", "down"))
_ELSEWHERE = (
    (
        "In the prompt",
        (
            ("Up Down", "recall, while nothing is typed"),
            ("PgUp PgDn", "move the chat"),
            ("End", "follow its end"),
            ("@", "a file goes along; Tab takes its name"),
        ),
    ),
    (
        "In a chat (Tab goes there)",
        (
            ("{transcript.previous} {transcript.next}", "the message before, the one after"),
            ("{transcript.menu}", "what can be done with it"),
            ("{transcript.reasoning}", "show its reasoning, or hide it"),
            ("{transcript.retry}", "draw a failed reply again"),
            (f"{{{_SELECT}}}", "select: the blocks of the text glow on the map"),
            ("{transcript.select_message} {transcript.select_all}", "select the message, or all"),
            ("{transcript.copy}", "send what is selected to the clipboard, or the last reply"),
            (
                "{transcript.find_next} {transcript.find_previous}",
                "the next place that was found, the one before",
            ),
            ("Home End", "first, last"),
        ),
    ),
    (
        "In the monitor ({view.to_monitor} goes there)",
        (
            (f"{{{_PANES}}}", "one pane alone, or all"),
            (
                "{monitor.faster} {monitor.slower}  {monitor.pause}",
                "look more often, or less; hold the picture",
            ),
            (
                "{monitor.order}  {monitor.colour}  {monitor.letters}",
                "the map: order, what colour means, letters",
            ),
            (
                "{monitor.left monitor.right monitor.up monitor.down}",
                "the map: the text of these blocks lights up in its chats",
            ),
            ("{monitor.up monitor.down}", "the lists: another line"),
            ("{monitor.zoom}", "the map: which blocks, whose, and what they hold"),
            ("{monitor.abort}  {monitor.preempt}", "abort, or preempt, the selected request"),
            ("{monitor.filter}", "filter the events"),
        ),
    ),
    (
        "In the decoding drawer",
        (
            ("{decoding.up decoding.down}", "another field"),
            ("{decoding.less decoding.more}", "turn it"),
            ("{decoding.much_less decoding.much_more}", "turn it tenfold"),
            ("0-9", "type a value"),
            ("Delete", "as the engine has it by itself; on presets, deletes one"),
            ("Enter", "grammar: a JSON schema's file, or /an expression/"),
            ("Ctrl+S", "save it all as a preset"),
        ),
    ),
    (
        "In the quantization drawer",
        (
            ("{quantization.up quantization.down}", "another scheme"),
            ("Tab", "of the weights, or of the cache"),
            ("Enter", "convert to it"),
        ),
    ),
    (
        "Along the tokens of a reply ({reply.pick}, or its menu)",
        (
            ("{tokens.left tokens.right}", "another token"),
            ("{tokens.far_left tokens.far_right}", "ten further"),
            ("Home End", "first, last"),
            ("{tokens.up tokens.down}", "what else was likely there"),
            ("Enter", "a fork goes on with it from there"),
        ),
    ),
)


class HelpScreen(Dialog[None]):
    """Scrolls where the terminal is small."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "leave", show=False)]

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet -help") as sheet:
            sheet.border_title, sheet.border_subtitle = "Help", "Up Down scroll  Esc leave"
            yield Static()

    def on_resize(self) -> None:
        text = self.query_one(Static)
        text.update(self._text(text.size.width))

    def _text(self, width: int) -> Content:
        lines: list[Content] = []
        for group, commands in groupby(COMMANDS, key=lambda command: command.group):
            rows = [
                (" ".join(key_name(key) for key in keys.split(",")), each.title)
                for each in commands
                if (keys := keys_of(each.id, self._keymap)) and not each.id[-1].isdigit()
            ]
            if group == "Chats":
                rows.append((names_of(_CHATS, self._keymap), "Go to a chat"))
            lines += self._section(group, rows, width)
        for title, pairs in _ELSEWHERE:
            lines += self._section(
                self._named(title), [(self._named(keys), what) for keys, what in pairs], width
            )
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
        return _IDS.sub(lambda found: names_of(found[1].split(), self._keymap), text)

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
