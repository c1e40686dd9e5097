"""Widgets that render their own lines without Textual's borders, padding and caches."""

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget


def lines_of(widget: Widget, crop: Region) -> list[Strip]:
    """Return the lines of a widget in the terminal's colors. `crop` is relative to the widget."""
    width = widget.region.width
    strips = [widget.render_line(y) for y in crop.line_range]
    if any(strip.cell_length != width for strip in strips):  # during a resize
        ground = widget.rich_style
        strips = [strip.adjust_cell_length(width, ground) for strip in strips]
    if filters := widget.get_line_filters():
        _, background = widget.background_colors
        for filter in filters:
            strips = [strip.apply_filter(filter, background) for strip in strips]
    return strips if crop.column_span == (0, width) else [strip.crop(*crop.column_span) for strip in strips]


class Bar(ScrollBar):
    """A vertical scroll bar with cached strips: a streaming reply moves it ten times a second."""

    _bar: tuple[object, ...] = ()  # what the strips show
    _strips: tuple[Strip, ...] = ()

    def render_lines(self, crop: Region) -> list[Strip]:
        self._bring_up_to_date(max(self.size.height, crop.bottom))
        return lines_of(self, crop)

    def render_line(self, y: int) -> Strip:
        return self._strips[y]

    def _bring_up_to_date(self, height: int) -> None:
        bar = self.render()
        assert isinstance(bar, ScrollBarRender) and isinstance(bar.style, Style)
        present = (height, bar.virtual_size, bar.window_size, bar.position, bar.style)
        if present != self._bar:
            self._bar, self._strips = present, _strips(bar, bar.style, height, self.visual_style.rich_style)


def _strips(bar: ScrollBarRender, style: Style, height: int, ground: Style) -> tuple[Strip, ...]:
    assert style.color is not None and style.bgcolor is not None
    drawn = bar.render_bar(
        size=height,
        virtual_size=bar.virtual_size,
        window_size=bar.window_size,
        position=bar.position,
        thickness=bar.thickness,
        back_color=style.bgcolor,
        bar_color=style.color,
    )
    made: dict[int, Strip] = {}
    for segment in drawn.segments:
        if id(segment) not in made:
            made[id(segment)] = Strip(Segment.apply_style([segment], ground))
    return tuple(made[id(segment)] for segment in drawn.segments)
