"""Ctrl+P: the command palette lists every command and the features' extra entries."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Input

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.ui.dialogs.fuzzy import match
from minichat.ui.dialogs.pick import Choice, PickScreen
from minichat.ui.marks import ASCII, UNICODE, shortened

Work = Callable[[], Awaitable[None]]

_GAP = 2  # cells between two columns
_TITLE = 40  # cells of a title, if a group is shown beside it


class PaletteEntry(NamedTuple):
    """One line of the palette."""

    title: str
    group: str
    key: str
    work: Work
    also: str = ""

    def match(self, query: str) -> tuple[int, tuple[int, ...]]:
        """How well the query matches, and the letters of the title that do."""
        found = match(query, self.title)
        if any(word.startswith(query.lower()) for word in self.also.split()):
            return max(found, (match(query, query)[0], ()))
        return found


class Palette(PickScreen[Work]):
    """Titles at the left, groups and keys at the right. Returns what to run."""

    def __init__(self, context: Context) -> None:
        super().__init__("All commands", self._fitting, "type a command")
        self.context = context
        self._width = 0  # of a line beside the scroll bar
        self._cut = (ASCII if context.program.start.ascii else UNICODE).ellipsis

    def on_resize(self) -> None:
        field = self.query_one(Input)  # its margins are as wide as the scroll bar
        if field.size.width != self._width:
            self._width = field.size.width
            self._list(field.value)

    def _fitting(self, query: str) -> list[Choice[Work]]:
        """All entries in their order, or those that match, the best first. None before the first layout."""
        if not self._width:
            return []
        listed = list(entries(self.context))
        found: list[tuple[float, Sequence[int], PaletteEntry]] = [(0, (), entry) for entry in listed]
        if query := query.strip():
            scored = [(*entry.match(query), entry) for entry in listed]
            found = sorted((each for each in scored if each[0] > 0), key=lambda each: -each[0])
        self.say("" if found else "No command matches")
        right = _columns([entry for *_, entry in found], self._width - _TITLE)
        return [
            Choice(self._line(entry.title, matched, aligned), entry.work)
            for (_, matched, entry), aligned in zip(found, right, strict=True)
        ]

    def _line(self, title: str, matched: Sequence[int], right: Content) -> Content:
        label = Content(title)  # a chat's title may look like markup
        for at in matched:
            label = label.stylize("bold underline", at, at + 1)
        room = max(self._width - right.cell_length, _GAP)
        label = shortened(label, room - _GAP, self._cut)
        return Content.assemble(label, " " * (room - label.cell_length), right)


def _columns(found: Sequence[PaletteEntry], room: int) -> list[Content]:
    """The groups and the keys, aligned. Without room for both, the keys alone."""
    groups = max((len(each.group) for each in found), default=0)
    keys = max((len(each.key) for each in found), default=0)
    if room < groups + keys + 2 * _GAP:
        groups = 0
    return [
        Content.assemble(
            (f"{each.group:<{groups}}"[:groups], "$text-muted"),
            " " * (_GAP if groups else 0),
            (f"{each.key:>{keys}}", "$text-accent"),
        )
        for each in found
    ]


def entries(context: Context) -> Iterator[PaletteEntry]:
    """All current entries."""
    for command in context.commands:
        if command.palette and command.enabled(context):
            key = context.keys.name(command.id)
            start = partial(context.run, replace(command, run=command.chosen or command.run))
            yield PaletteEntry(command.title, command.group, key, start, command.also)
    for feature in context.features:
        if feature.offers is not None:
            for title, group, work in feature.offers(context):
                yield PaletteEntry(title, group, "", partial(context.do, work))


def show(context: Context) -> None:
    async def take(work: Work | None) -> None:
        if work is not None:
            await work()

    context.app.push_screen(Palette(context), take)


PALETTE = Feature(
    name="palette",
    title="All commands",
    commands=(
        ScreenCommand("program.palette", "Program", "All commands", show, "ctrl+p", "all", palette=False),
    ),
)
