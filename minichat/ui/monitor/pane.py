"""What the panes of the monitor have in common: rows of text, and only those that changed are repainted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.shell.themes import OKABE_ITO
from minichat.ui.lines import lines_of
from minichat.ui.monitor.owners import UNKNOWN, Owner
from minichat.ui.panes.keybar import Hints
from minichat.ui.transcript.glyphs import drawable

Span = tuple[str, str | Style]  # text, and how it looks: names of looks, or owner:INDEX, or the style itself
Row = tuple[Span, ...]
Line = Row | Strip  # a strip where its maker knows when it has to be another
LOOKS = ("title", "muted", "strong", "value", "good", "warn", "fault", "graph", "second", "selected")


@dataclass(frozen=True, slots=True)
class Signs:
    """What the monitor draws with."""

    ascii: bool = False
    pointer: str = "▸"
    full: str = "█"
    rest: str = "░"
    parts: str = "█▓▒░"
    below: str = "↓"
    cut: str = "…"
    swatch: str = "■"
    mark: str = "│"
    axis: str = "▏"

    def line(self, text: str) -> str:
        """Text from outside as one harmless line."""
        line = " ".join(drawable(text).split())
        return line.encode("ascii", "replace").decode() if self.ascii else line


UNICODE = Signs()
ASCII = Signs(True, ">", "#", "_", "PLWC", "v", "~", "#", "!", "|")


class Pane(Widget, can_focus=True):
    """A subclass says what its rows are; `number` is the key that maximises it."""

    DEFAULT_CSS = """
    Pane {
        width: 1fr;
        height: 1fr;
        & > .pane--title { color: $text-primary; text-style: bold; }
        & > .pane--muted { color: $text-muted; }
        & > .pane--strong { text-style: bold; }
        & > .pane--value { color: $foreground; }
        & > .pane--good { color: $text-success; }
        & > .pane--warn { color: $text-warning; text-style: bold; }
        & > .pane--fault { color: $text-error; text-style: bold; }
        & > .pane--graph { color: $primary; }
        & > .pane--second { color: $accent; }
        & > .pane--selected { background: $panel; text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"pane--{look}" for look in LOOKS}
    HINTS: ClassVar[Hints] = (
        ("1-5", "pane"),
        ("monitor.pause", "pause"),
        ("monitor.faster", "more often"),
        ("monitor.slower", "less"),
        ("Esc", "back"),
    )
    number: ClassVar[int]
    title: ClassVar[str]

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.signs = ASCII if ascii else UNICODE
        self.note = ""  # at the right end of the heading: paused
        self.flag = ""  # there too: what the engine does without
        self.snapshot: Snapshot | None = None
        self.owners: Mapping[int, Owner] = {}
        self._rows: list[Line] = []
        self._strips: list[Strip] = []
        self._styles: dict[str, Style] = {}

    def update_from(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        self.snapshot, self.owners = snapshot, owners
        self.draw()

    @property
    def wanted(self) -> int | None:
        """How many lines it has a use for; None: as many as there are."""
        return None

    def rows(self, width: int, height: int) -> Sequence[Line]:
        """For the present state; what is beyond `height` is not seen."""
        return (self.heading(),)

    def draw(self) -> None:
        """Repaints the rows that are not as they were."""
        if not self.seen:
            return
        width, height = self.size
        rows = list(self.rows(width, height))[:height]
        rows += [()] * (height - len(rows))
        if len(rows) != len(self._rows):
            self._rows, self._strips = rows, [self._strip(row, width) for row in rows]
            self.refresh()
            return
        changed = [y for y, row in enumerate(rows) if row is not self._rows[y] and row != self._rows[y]]
        for y in changed:
            self._strips[y] = self._strip(rows[y], width)
        self._rows = rows
        if changed:
            self.refresh(*_regions(changed, width))

    @property
    def seen(self) -> bool:
        """Whether there is a place for it on the screen."""
        return self.is_attached and bool(self.size) and all(node.display for node in self.ancestors_with_self)

    def redraw(self) -> None:
        """All of it, as after another size or theme."""
        self._rows = []
        self.draw()

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.plain)

    def render_lines(self, crop: Region) -> list[Strip]:
        return lines_of(self, crop)

    def on_resize(self) -> None:
        self.redraw()

    def on_show(self) -> None:
        self.redraw()

    def on_focus(self) -> None:
        self.draw()

    def on_blur(self) -> None:
        self.draw()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.call_next(self._restyle)  # Textual brings the parts of a widget up to date after the widget

    def _restyle(self) -> None:
        self._styles.clear()
        self.redraw()

    # For subclasses

    def heading(self, *facts: str, right: str = "") -> Row:
        """`1 KV map  61%  ...`; facts that do not fit are left out, the last first."""
        left = f"{self.signs.pointer if self.has_focus else ' '}{self.number} {self.title}"
        urgent = self.note or self.flag
        right = urgent or right
        width = self.size.width
        room = width - len(left) - (len(right) + 3 if right else 1)
        words = ""
        for fact in filter(None, facts):
            if len(words) + 2 + len(fact) > room:
                break
            words += f"  {fact}"
        gap = " " * max(1, width - len(left) - len(words) - len(right) - 1)
        look = "title selected" if self.has_focus else "title"
        return ((left, look), (words, "muted"), (gap, ""), (right, "warn" if urgent else "muted"))

    def owner_of(self, request: int) -> Owner:
        return self.owners.get(request, UNKNOWN)

    def hue(self, index: int) -> Color | None:
        """The colour of an owner; none for one who is not known."""
        if index < 0:
            return None
        variables = self.app.theme_variables
        own = [variables[name] for name in _OWNERS if name in variables] or OKABE_ITO
        return Color.parse(own[index % len(own)])

    def style(self, look: str) -> Style:
        if (style := self._styles.get(look)) is None:
            style = self._styles[look] = sum(map(self._part, look.split()), self.rich_style)
        return style

    @property
    def plain(self) -> Style:
        """Text without a look of its own, and the ground where there is none."""
        return self.style("")

    def _part(self, name: str) -> Style:
        if name.startswith("owner:"):
            hue = self.hue(int(name.removeprefix("owner:")))
            return Style(color=hue.rich_color if hue else None, bold=True)
        if name == "selected" and self.app.no_color:
            return Style(reverse=True)
        return self.get_component_rich_style(f"pane--{name}", partial=True)

    def _strip(self, row: Line, width: int) -> Strip:
        if isinstance(row, Strip):
            return row
        segments = [
            Segment(text, self.style(look) if isinstance(look, str) else look) for text, look in row if text
        ]
        return Strip(segments).adjust_cell_length(width, self.plain)


_OWNERS = [f"owner-{number}" for number in range(1, 65)]


def _regions(lines: Sequence[int], width: int) -> list[Region]:
    """Neighbouring lines as one region."""
    regions: list[Region] = []
    for y in lines:
        if regions and regions[-1].bottom == y:
            last = regions.pop()
            regions.append(Region(0, last.y, width, last.height + 1))
        else:
            regions.append(Region(0, y, width, 1))
    return regions


def clip(text: str, width: int, cut: str) -> str:
    """The text in exactly that many cells."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + cut if width > 0 else ""
