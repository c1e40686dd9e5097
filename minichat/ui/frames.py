"""Screen updates: render only the lines that changed, send only the cells that differ.

Textual's compositor renders every widget inside the bounding box of all changes, and sends each changed
region whole. With several chats beside the monitor that box is the whole screen, ten times a second.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from typing import NamedTuple, TypeVar

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import Compositor, CompositorUpdate, LayoutUpdate, ReflowResult
from textual.geometry import Offset, Region, Size, clamp
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from minichat.shell.output import TerminalDriver

Result = TypeVar("Result")

# Characters that a terminal obeys instead of showing. They take no cell: without them nothing moves.
_OBEYED = dict.fromkeys((*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def _without_controls(text: str) -> str:
    """The text as it is written: names that come from an engine or a file may hold anything."""
    return text if text.isprintable() else text.translate(_OBEYED)


def _harmless(strip: Strip) -> Strip:
    if strip.text.isprintable():
        return strip
    return Strip([each._replace(text=_without_controls(each.text)) for each in strip], strip.cell_length)


class Piece(NamedTuple):
    """Adjacent cells of a line that show one widget."""

    x: int
    end: int
    widget: Widget
    region: Region  # the whole widget, parts of which may be clipped
    crop: Region  # its visible part


class Sent(NamedTuple):
    """What the terminal shows of a piece: its segments by column."""

    strip: Strip
    segments: dict[int, Segment]
    pad: int  # the column where trailing blanks begin
    ground: Style | None  # the style of the blanks


class Frame(CompositorUpdate):
    """New lines of some pieces. They are compared with the terminal's content when written, not before."""

    def __init__(self, made: list[tuple[int, Piece, Strip]], sent: "dict[tuple[int, int], Sent]") -> None:
        self._made, self._sent = made, sent

    def render_segments(self, console: Console) -> str:
        pen = _Pen(console._color_system or ColorSystem.TRUECOLOR)
        for y, piece, strip in self._made:
            before = self._sent.get((y, piece.x))
            if before is None or before.strip is not strip:
                self._sent[y, piece.x] = _draw(pen, y, piece.x, strip, before)
        return pen.sequences()


class Frames(Compositor):
    """A compositor whose partial updates are small."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[tuple[int, int], Sent] = {}  # by line and first column
        self._pieces: dict[int, list[Piece]] = {}
        self._placed: object = None  # the layout that both belong to
        self._laid_out = self._full_map  # as of the last reflow

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        """Lay out, and return the widgets that get an event.

        Reading a widget's region may have updated the map already. Compared with that map, a widget that was
        resized or added meanwhile would count as unchanged, and get neither Resize nor Show.
        """
        self._full_map = self._laid_out
        changed = super().reflow(parent, size)
        self._laid_out = self._full_map
        return changed

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        self._sent.clear()
        update = super().render_full_update(simplify)
        update.strips = [[_harmless(strip) for strip in line] for line in update.strips]
        return update

    def render_partial_update(self) -> Frame | None:  # type: ignore[override]
        if self.layers_visible is not self._placed:
            self._placed = self.layers_visible
            self._pieces.clear()
            self._sent.clear()
        dirty: dict[Widget, dict[int, list[Piece]]] = defaultdict(dict)
        for y, spans in groupby(self._dirty_spans(), key=lambda span: span[0]):
            changed = list(spans)
            for piece in self._line(y):
                if any(piece.x < right and left < piece.end for _, left, right in changed):
                    dirty[piece.widget].setdefault(y, []).append(piece)
        if not dirty:
            return None
        made = [each for widget, lines in dirty.items() for each in _made(widget, lines)]
        return Frame(sorted(made, key=lambda each: (each[0], each[1].x)), self._sent)

    def _dirty_spans(self) -> list[tuple[int, int, int]]:
        """Return (line, first column, end column) of each dirty span, grouped by line."""
        screen = self.size.region
        regions = [region.intersection(screen) for region in self._dirty_regions]
        self._dirty_regions.clear()
        return list(self._regions_to_spans(filter(None, regions)))

    def _line(self, y: int) -> list[Piece]:
        """The pieces of a line, from left to right."""
        pieces = self._pieces.get(y)
        if pieces is None:
            pieces = self._pieces[y] = []
            for x, end in pairwise(self.cuts[y]):
                front = next((each for each in self.layers_visible[y] if _covers(each[1], x)), None)
                if front is None:
                    continue
                widget, crop, region = front
                if pieces and pieces[-1].widget is widget and pieces[-1].end == x:
                    x = pieces.pop().x
                pieces.append(Piece(x, end, widget, region, crop))
        return pieces


class FrameScreen(Screen[Result]):
    """A screen that uses `Frames` as its compositor."""

    def __init__(self) -> None:
        super().__init__()
        self._compositor = Frames()

    def _on_timer_update(self) -> None:
        """Draw, once the terminal has taken the last frame. Until then the timer keeps running."""
        driver = self.app._driver
        if not (isinstance(driver, TerminalDriver) and driver.behind):
            super()._on_timer_update()

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """What is selected at a cell. A selection with the mouse ends in the widget in which it began."""
        begun = self._select_state.start.content_widget if self._selecting and self._select_state else None
        if begun is not None and begun.is_attached:
            area = begun.scrollable_content_region
            x = clamp(x, area.x, area.right - 1)
            y = clamp(y, area.y, area.bottom - 1)
        return super().get_widget_and_offset_at(x, y)


def _covers(region: Region, x: int) -> bool:
    return region.x <= x < region.right


def _made(widget: Widget, lines: Mapping[int, list[Piece]]) -> Iterator[tuple[int, Piece, Strip]]:
    """Render the widget's lines, adjacent ones in one call, and crop them to the visible pieces."""
    for first, count in _runs(sorted(lines)):
        region, crop = lines[first][0].region, lines[first][0].crop
        area = Region(crop.x - region.x, first - region.y, crop.width, count)
        for y, strip in enumerate(widget.render_lines(area), first):
            for piece in lines[y]:
                yield y, piece, strip.crop(piece.x - crop.x, piece.end - crop.x)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers as (first, count)."""
    begin = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[begin], index - begin
            begin = index


class _Pen:
    """Writes text at positions with as few control sequences as possible."""

    def __init__(self, colors: ColorSystem) -> None:
        self._colors = colors
        self._out: list[str] = []
        self._style: Style | None = None
        self._dirty = False  # the terminal's style is not the default
        self._at = (-1, -1)

    def write(self, y: int, x: int, text: str, style: Style | None, width: int) -> None:
        if self._at != (y, x):
            self._out.append(f"\x1b[{y + 1};{x + 1}H")
        if style is not None and style.link:
            self._out += ("\x1b[0m", Strip.render_style(style, text, self._colors))
            self._style, self._dirty = None, False
        else:
            self._dip(style)
            self._out.append(text)
        self._at = (y, x + width)

    def forget_position(self) -> None:
        """Forget the cursor position: a terminal may measure the text differently."""
        self._at = (-1, -1)

    def _dip(self, style: Style | None) -> None:
        if style is self._style or style == self._style:
            return
        codes = Strip.render_ansi(style, self._colors) if style is not None else ""
        if codes:
            self._out.append(f"\x1b[0;{codes}m" if self._dirty else f"\x1b[{codes}m")
        elif self._dirty:
            self._out.append("\x1b[0m")
        self._style, self._dirty = style, bool(codes)

    def sequences(self) -> str:
        self._dip(None)
        return "".join(self._out)


def _draw(pen: _Pen, y: int, x: int, strip: Strip, before: Sent | None) -> Sent:
    """Write the segments that differ from what the terminal shows."""
    segments = [segment for segment in strip if segment.text and not segment.control]
    now: dict[int, Segment] = {}
    at, pad = 0, 0
    pen.forget_position()
    for segment in segments:
        now[at] = segment
        width = segment.cell_length
        pad = at if segment.text.isspace() else at + width
        old = before.segments.get(at) if before is not None else None
        if old is not segment and old != segment:
            first, last = _same(old, segment), len(segment.text)
            if (
                before is not None
                and segment is segments[-1]
                and pad == at
                and segment.style == before.ground
            ):
                last = min(last, before.pad - at)  # the terminal is blank from there on
            if first < last:
                text = _without_controls(segment.text[first:last])
                pen.write(y, x + at + first, text, segment.style, width - first)
        at += width
    return Sent(strip, now, pad, segments[-1].style if segments else None)


def _same(old: Segment | None, new: Segment) -> int:
    """The number of leading characters that the terminal already shows."""
    if old is None or old.style != new.style or not (old.text.isascii() and new.text.isascii()):
        return 0
    pairs = zip(old.text, new.text, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(old.text), len(new.text)))
