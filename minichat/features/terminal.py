"""What the person's terminal shows and takes: the mouse, the theme, the whole screen once more."""

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.ui.dialogs.ask import AskScreen


def mouse(context: Context) -> None:
    """Lets the terminal select by itself, which it cannot while the program has the mouse."""
    taken = context.program.toggle_mouse()
    key = context.keys.name("view.mouse")
    context.app.notify(
        "the mouse is minichat's again" if taken else f"the mouse is the terminal's; {key} takes it back"
    )


def theme(context: Context) -> None:
    context.app.search_themes()


def copy_theme(context: Context) -> None:
    """Its file is there to be edited, and each save of it is seen at once."""

    def take(name: str | None) -> None:
        if name and name.strip():
            with context.program.complaining():
                file = context.program.copy_theme(name.strip())
                context.app.notify(f"each save of {file} shows here at once", markup=False)

    context.app.push_screen(AskScreen("a theme of your own, a copy of this one called", "mine"), take)


def redraw(context: Context) -> None:
    context.program.redraw()


TERMINAL = Feature(
    name="terminal",
    title="The terminal",
    commands=(
        ScreenCommand("view.mouse", "View", "Toggle mouse capture", mouse, "ctrl+g"),
        ScreenCommand("view.theme", "View", "Choose a theme", theme),
        ScreenCommand("view.copy_theme", "View", "Make a theme of your own, a copy of this one", copy_theme),
        ScreenCommand("view.redraw", "View", "Draw all of the screen again", redraw, "ctrl+l", priority=True),
    ),
)
