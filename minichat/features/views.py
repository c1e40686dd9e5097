"""Layout of the chats: side by side or one at a time, and following the active one."""

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.ui.layout import ROOM, SEVERAL


def side_by_side(context: Context) -> None:
    """Toggle between several chats and one. If the terminal is too narrow, show a notice."""
    workspace = context.workspace
    if (width := workspace.size.width) < SEVERAL:
        several = f"Showing chats side by side needs {SEVERAL} columns"
        context.app.notify(f"{several}; this terminal has {width}", severity="warning")
        return
    before = len(workspace.shown)
    workspace.side_by_side = not workspace.side_by_side
    workspace.lay_out()
    if len(workspace.shown) == before:
        how = "Chats are shown side by side" if workspace.side_by_side else "One chat is shown at a time"
        why = f"; {ROOM}" if workspace.side_by_side else ""
        context.app.notify(f"{how}{'; this is the only chat' if len(context.chats) == 1 else why}")


def follow(context: Context) -> None:
    transcript = context.workspace.transcript
    if transcript.following:
        context.app.notify("The end of the chat is followed already")
    transcript.follow()


VIEWS = Feature(
    name="views",
    title="Layout of the chats",
    commands=(
        ScreenCommand("view.panes", "View", "Toggle chats side by side", side_by_side, "alt+p"),
        ScreenCommand("view.follow", "View", "Follow the end of the chat", follow),
    ),
)
