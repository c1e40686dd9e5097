"""What the lines around the chats say."""

from collections.abc import Mapping, Sequence

from minichat.conversation import Conversation
from minichat.decoding import strategy
from minichat.keys import COMMANDS, key_name, keys_of
from minichat.widgets.tabs import Tab, titled

_FOOTER = (
    "view.help",
    "view.monitor",
    "view.decoding",
    "program.palette",
    "chat.new",
    "chat.jump",
    "reply.stop",
)


def tab(conversation: Conversation, colours: str, *, active: bool, shown: bool) -> Tab:
    chat = conversation.chat
    return Tab(
        letter=f" {chat.letter.upper()} ",
        title=titled(chat.title),
        colours=colours,
        active=active,
        shown=shown,
        running=conversation.streaming,
        unread=conversation.unread,
        failed=bool(chat.messages) and chat.messages[-1].state == "failed",
    )


def recipient(active: Conversation, to: Sequence[Conversation]) -> str:
    """Whom the prompt speaks to, and how the reply will be drawn."""
    if active.editing is not None:
        return "edit, and send again"
    if len(to) > 1:
        return f"to all {len(to)} panes: {' '.join(each.chat.letter.upper() for each in to)}"
    return f"{active.chat.letter.upper()}  {strategy(active.chat.params)}"


def hint(active: Conversation, keymap: Mapping[str, str]) -> str:
    """What Enter does."""
    if active.editing is not None:
        return "Esc keeps it as it was"
    send, newline = (key_name(keys_of(id, keymap)) for id in ("prompt.send", "prompt.newline"))
    return f"{send} send  {newline} newline"


def footer(keymap: Mapping[str, str], *, streaming: bool) -> tuple[tuple[str, str, str], ...]:
    """The keys that matter most: key, label, action."""
    commands = {command.id: command for command in COMMANDS}
    wanted = [commands[id] for id in _FOOTER if streaming or id != "reply.stop"]
    return tuple((key_name(keys_of(each.id, keymap)), each.footer, each.action) for each in wanted)
