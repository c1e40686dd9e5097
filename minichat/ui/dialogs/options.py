"""A list of options whose highlighted line is marked on any terminal: Textual's own cannot reverse it."""

from textual.style import Style
from textual.widgets import OptionList

from minichat.ui.monitor.shades import mixes


class Options(OptionList):
    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        style = super().get_visual_style(*component_classes, partial=partial)
        if "option-list--option-highlighted" in component_classes and not mixes(self.app):
            return style + Style(reverse=True)
        return style
