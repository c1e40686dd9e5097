"""The terminal: mouse, theme and redraw."""

from itertools import chain, count

from textual.content import Content
from textual.widgets import OptionList

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.ui.dialogs.ask import ask
from minichat.ui.dialogs.pick import Choice, PickScreen


def mouse(context: Context) -> None:
    """Toggle mouse capture. While the program captures the mouse, the terminal cannot select text."""
    taken = context.program.toggle_mouse()
    key = context.keys.name("view.mouse")
    context.app.notify("Mouse capture is on" if taken else f"Mouse capture is off. {key} turns it on")


class ThemeScreen(PickScreen[str]):
    """Shows the whole screen in the highlighted theme; without a choice the earlier theme comes back."""

    def __init__(self, current: str) -> None:
        super().__init__("Choose a theme", self._matching, "type a name")
        self._before = current

    def _matching(self, query: str) -> list[Choice[str]]:
        """The current theme first, so that opening the list changes nothing."""
        names = sorted(self.app.available_themes, key=lambda name: (name != self._before, name))
        return [Choice(Content(name), name) for name in names if query.strip().casefold() in name.casefold()]

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if self.is_current and (choice := self.choice(event.option)) is not None:
            self._show_theme(choice.value)

    def action_leave(self) -> None:
        self._show_theme(self._before)
        super().action_leave()

    def _show_theme(self, name: str) -> None:
        if name in self.app.available_themes:  # else its file has been removed since
            self.app.theme = name


def theme(context: Context) -> None:
    context.app.push_screen(ThemeScreen(context.app.theme))


def copy_theme(context: Context) -> None:
    """Copy the current theme to a file. Each save of that file applies immediately."""

    def accept(name: str) -> bool:
        taken = not name.strip()
        if not taken:
            with context.program.reporting_errors():
                file = context.program.copy_theme(name.strip())
                context.app.notify(f"Edit {file}. Each save applies immediately")
                taken = True
        return taken

    names = chain(["mine"], (f"mine-{number}" for number in count(2)))
    free = next(name for name in names if name not in context.app.available_themes)
    ask(context.app, "Copy this theme under the name", accept, free)


def redraw(context: Context) -> None:
    context.program.redraw()


TERMINAL = Feature(
    name="terminal",
    title="Terminal",
    commands=(
        ScreenCommand("view.mouse", "View", "Toggle mouse capture", mouse, "ctrl+g"),
        ScreenCommand("view.theme", "View", "Choose a theme", theme, also="colors colours dark light"),
        ScreenCommand("view.copy_theme", "View", "Copy this theme to edit it", copy_theme),
        ScreenCommand("view.redraw", "View", "Redraw the screen", redraw, "ctrl+l", priority=True),
    ),
)
