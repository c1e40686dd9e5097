"""The base class of the monitor's panes: rows of text, of which only the changed ones are redrawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.shell.themes import OKABE_ITO, readable
from minichat.ui.lines import lines_of
from minichat.ui.monitor.bindings import MAXIMIZE
from minichat.ui.monitor.owners import UNKNOWN, Owner
from minichat.ui.monitor.shades import mixes
from minichat.ui.panes.keybar import Hints, HintsChanged
from minichat.ui.transcript.glyphs import drawable

Span = tuple[str, str | Style]  # text and its look: names from LOOKS, owner:INDEX, or a style
Row = tuple[Span, ...]
Line = Row | Strip  # a strip if the pane caches it itself
LOOKS = ("title", "muted", "strong", "value", "good", "warn", "fault", "graph", "second", "selected")


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters that the monitor draws with."""

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
        """Turn untrusted text into one line without control characters."""
        line = " ".join(drawable(text).split())
        return line.encode("ascii", "replace").decode() if self.ascii else line


UNICODE = Signs()
ASCII = Signs(True, ">", "#", "_", "PLWC", "v", "~", "#", "!", "|")


class Pane(Widget, can_focus=True):
    """A subclass returns its `rows`; `number` is the key that maximizes it."""

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
        MAXIMIZE,
        ("monitor.pause", "pause"),
        ("monitor.faster", "faster"),
        ("monitor.slower", "slower"),
        ("Esc", "back"),
    )
    number: ClassVar[int]
    title: ClassVar[str]

    def __init__(self, *, ascii: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self.signs = ASCII if ascii else UNICODE
        self._scrolls = False
        self.note = ""  # at the right end of the heading, such as "paused"
        self.flag = ""  # also there: switches that differ from the engine's start
        self.paused = False  # it shows what it has, while more is recorded
        self.left_out = ""  # also there: the panes that do not fit below it
        self.snapshot: Snapshot | None = None
        self.owners: Mapping[int, Owner] = {}
        self._rows: list[Line] = []
        self._strips: list[Strip] = []
        self._styles: dict[str, Style] = {}

    @property
    def hints(self) -> Hints:
        return self.working(self.HINTS)

    def working(self, hints: Hints) -> Hints:
        """Those of the keys that do something now."""
        labels = {"monitor.pause": "resume"} if self.paused else {}
        return tuple(
            (key, labels.get(key, label)) for key, label in hints if self._scrolls or label != "scroll"
        )

    def tell_scrolling(self, scrolls: bool) -> None:
        """Tell whether some lines do not fit."""
        if scrolls != self._scrolls:
            self._scrolls = scrolls
            self.post_message(HintsChanged())

    def update_from(self, snapshot: Snapshot, owners: Mapping[int, Owner]) -> None:
        self.snapshot, self.owners = snapshot, owners
        self.draw()

    def pause(self, on: bool) -> None:
        self.paused = on

    @property
    def useful_lines(self) -> int | None:
        """The number of lines it can use; None if any."""
        return None

    def rows(self, width: int, height: int) -> Sequence[Line]:
        """Return the rows for the current state; those beyond `height` are cut off."""
        return (self.heading(),)

    def draw(self) -> None:
        """Redraw the rows that changed."""
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
        """Whether it is visible on the screen."""
        return self.is_attached and bool(self.size) and all(node.display for node in self.ancestors_with_self)

    def redraw(self) -> None:
        """Redraw everything, as after a change of size or theme."""
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
        self.call_next(self._restyle)  # Textual updates component styles after the widget's own

    def _restyle(self) -> None:
        self._styles.clear()
        self.redraw()

    # For subclasses

    def heading(self, *facts: str, right: str = "") -> Row:
        """The heading, `1 KV map  61%  ...`. The last facts are left out if they do not fit, with a sign."""
        left = f"{self.signs.pointer if self.has_focus else ' '}{self.number} {self.title}"
        urgent = self.note or self.flag
        right = urgent or right or self.left_out
        width = self.size.width
        room = width - len(left) - (len(right) + 3 if right else 1)
        shown = [f"  {fact}" for fact in facts if fact]
        words = "".join(shown)
        while shown and len(words) > room:
            shown.pop()
            words = "".join((*shown, f" {self.signs.cut}"))
        words = words if len(words) <= room else ""
        gap = " " * max(1, width - len(left) - len(words) - len(right) - 1)
        look = "title selected" if self.has_focus else "title"
        return ((left, look), (words, "muted"), (gap, ""), (right, "warn" if urgent else "muted"))

    def owner_of(self, request: int) -> Owner:
        return self.owners.get(request, UNKNOWN)

    def hue(self, index: int) -> Color | None:
        """An owner's color; None for an unknown owner."""
        if index < 0:
            return None
        variables = self.app.theme_variables
        own = [variables[name] for name in _OWNERS if name in variables] or OKABE_ITO
        return Color.parse(own[index % len(own)])

    def _text_hue(self, index: int) -> RichColor | None:
        """An owner's color as that of text: some are distinct on the background, but not readable."""
        hue, plain = self.hue(index), self.rich_style
        if hue is None or hue.ansi is not None or plain.color is None or plain.bgcolor is None:
            return hue.rich_color if hue else None
        text, ground = Color.from_rich_color(plain.color), Color.from_rich_color(plain.bgcolor)
        return readable(hue, ground, text).rich_color

    def style(self, look: str) -> Style:
        if (style := self._styles.get(look)) is None:
            style = self._styles[look] = sum(map(self._part, look.split()), self.rich_style)
        return style

    @property
    def plain(self) -> Style:
        """The style of plain text and of empty cells."""
        return self.style("")

    def _part(self, name: str) -> Style:
        if name.startswith("owner:"):
            return Style(color=self._text_hue(int(name.removeprefix("owner:"))), bold=True)
        if name == "selected" and not mixes(self.app):
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
    """Regions of lines; adjacent lines share one."""
    regions: list[Region] = []
    for y in lines:
        if regions and regions[-1].bottom == y:
            last = regions.pop()
            regions.append(Region(0, last.y, width, last.height + 1))
        else:
            regions.append(Region(0, y, width, 1))
    return regions


def clip(text: str, width: int, cut: str) -> str:
    """Cut or pad the text to exactly `width` cells."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + cut if width > 0 else ""
