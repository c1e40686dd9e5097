"""The terminal: mouse, theme and redraw."""

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.ui.dialogs.ask import AskScreen


def mouse(context: Context) -> None:
    """Toggle mouse capture. While the program captures the mouse, the terminal cannot select text."""
    taken = context.program.toggle_mouse()
    key = context.keys.name("view.mouse")
    context.app.notify("Mouse capture is on" if taken else f"Mouse capture is off. {key} turns it on")


def theme(context: Context) -> None:
    context.app.search_themes()


def copy_theme(context: Context) -> None:
    """Copy the current theme to a file. Each save of that file applies immediately."""

    def take(name: str | None) -> None:
        if name and name.strip():
            with context.program.reporting_errors():
                file = context.program.copy_theme(name.strip())
                context.app.notify(f"Edit {file}. Each save applies immediately", markup=False)

    context.app.push_screen(AskScreen("Copy this theme under the name", "mine"), take)


def redraw(context: Context) -> None:
    context.program.redraw()


TERMINAL = Feature(
    name="terminal",
    title="Terminal",
    commands=(
        ScreenCommand("view.mouse", "View", "Toggle mouse capture", mouse, "ctrl+g"),
        ScreenCommand("view.theme", "View", "Choose a theme", theme),
        ScreenCommand("view.copy_theme", "View", "Copy this theme to edit it", copy_theme),
        ScreenCommand("view.redraw", "View", "Redraw the screen", redraw, "ctrl+l", priority=True),
    ),
)
