"""A list of options whose highlighted line can be reversed: Textual's own ignores that style."""

from textual.style import Style
from textual.widgets import OptionList


class Options(OptionList):
    """Obeys `text-style: reverse`, which marks the highlighted line without colors."""

    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        style = super().get_visual_style(*component_classes, partial=partial)
        if component_classes and self.get_component_styles(*component_classes).text_style.reverse:
            return style + Style(reverse=True)
        return style
