"""What of the chats is seen: several side by side or one, and the end of the active one."""

from minichat.features.feature import Context, Feature, ScreenCommand
from minichat.ui.layout import SEVERAL


def side_by_side(context: Context) -> None:
    """Several chats, or one. Where there is no room for them, a notice says so."""
    workspace = context.workspace
    if (width := workspace.size.width) < SEVERAL:
        several = f"{SEVERAL} columns show several chats side by side"
        context.app.notify(f"{several}, and this terminal has {width}", severity="warning")
        return
    workspace.side_by_side = not workspace.side_by_side
    workspace.lay_out()
    if len(context.chats) == 1:
        how = "several chats stand side by side" if workspace.side_by_side else "one chat is seen at a time"
        context.app.notify(f"{how}: this is the only one")


def follow(context: Context) -> None:
    context.workspace.transcript.follow()


VIEWS = Feature(
    name="views",
    title="What is seen of the chats",
    commands=(
        ScreenCommand("view.panes", "View", "Several chats side by side, or one", side_by_side, "alt+p"),
        ScreenCommand("view.follow", "View", "Follow the end of the chat", follow),
    ),
)
