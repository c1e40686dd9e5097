"""Looks as styles of the current theme. Each is a component class that a stylesheet can change."""

from rich.color import ColorType
from rich.style import Style
from textual.color import Color
from textual.screen import Screen
from textual.widget import Widget

from minichat.shell.themes import MUTED
from minichat.ui.transcript.markdown.highlight import SYNTAX
from minichat.ui.transcript.markdown.rows import Look

LOOKS = (
    "head",
    "user",
    "assistant",
    "system",
    "marked",
    "note",
    "fault",
    "strong",
    "em",
    "strike",
    "code",
    "link",
    "heading",
    "title",
    "quote",
    "thought",
    "mark",
    "block",
    *SYNTAX,
    "tail",
    "found",
    "current",
    "lit",
    "parted",
    "picked",
    "selected",
)
CSS = """
Transcript {
    overflow-x: hidden;
    overflow-y: scroll;
    scrollbar-size-vertical: 1;

    & > .transcript--user { color: $secondary; text-style: bold; }
    & > .transcript--assistant { color: $primary; text-style: bold; }
    & > .transcript--system { text-style: bold; }
    & > .transcript--marked { text-style: bold reverse; }
    & > .transcript--note { text-style: dim; }
    & > .transcript--fault { color: $error; text-style: bold; }
    & > .transcript--strong { text-style: bold; }
    & > .transcript--em { text-style: italic; }
    & > .transcript--strike { text-style: strike; }
    & > .transcript--code { color: $accent; }
    & > .transcript--link { color: $secondary; text-style: underline; }
    & > .transcript--heading { color: $primary; text-style: bold; }
    & > .transcript--title { text-style: bold underline; }
    & > .transcript--quote { text-style: italic; }
    & > .transcript--thought { text-style: dim italic; }
    & > .transcript--mark { text-style: dim; }
    & > .transcript--block { background: $surface; }
    & > .transcript--comment { text-style: dim italic; }
    & > .transcript--keyword { color: $primary; text-style: bold; }
    & > .transcript--string { color: $success; }
    & > .transcript--number { color: $warning; }
    & > .transcript--function { color: $secondary; }
    & > .transcript--builtin { color: $accent; }
    & > .transcript--inserted { color: $success; }
    & > .transcript--deleted { color: $error; }
    & > .transcript--tail { text-style: dim; }
    & > .transcript--found { text-style: reverse; }
    & > .transcript--current { text-style: bold underline reverse; }
    & > .transcript--lit { background: $accent-muted; text-style: underline; }
    & > .transcript--parted, & > .transcript--picked { text-style: bold reverse; }
}
"""


def component(look: str) -> str:
    return f"transcript--{look}"


def color(widget: Widget, look: Look) -> Style:
    """The style of a look: the styles of its names combined."""
    style = widget.rich_style
    for name in look:
        if name == "selected":
            style += _chosen(widget.screen)
            style += Style(reverse=True) if widget.app.no_color else Style()
        else:
            style += widget.get_component_rich_style(component(name), partial=True)
    return style if widget.app.no_color else _faded(style)


def _chosen(screen: Screen[object]) -> Style:
    """Textual's selection style. Its text color is transparent, so use black or white, never dimmed."""
    name = "screen--selection"
    style, own = screen.get_component_rich_style(name), screen.get_component_rich_style(name, partial=True)
    if own.color is None and style.bgcolor is not None:
        style += Style(color=Color.from_rich_color(style.bgcolor).get_contrast_text(1.0).rich_color)
    return style + Style(dim=False)


def _faded(style: Style) -> Style:
    """Replace dim by a color between text and background if both are known: terminals dim differently."""
    text, ground = style.color, style.bgcolor
    if not style.dim or text is None or ground is None:
        return style
    if text.type is not ColorType.TRUECOLOR or ground.type is not ColorType.TRUECOLOR:
        return style
    mixed = Color.from_rich_color(ground).blend(Color.from_rich_color(text), MUTED)
    return style + Style(color=mixed.rich_color, dim=False)
