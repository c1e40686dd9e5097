"""What the lines around the chats say."""

from collections.abc import Mapping, Sequence

from textual.widget import Widget

from engine.snapshot import Snapshot
from minichat.conversation import Conversation
from minichat.decoding import strategy
from minichat.keys import COMMANDS, bound, key_name, keys_of, names_of
from minichat.widgets.keybar import Hinting, Key
from minichat.widgets.tabs import Tab, titled

_FOOTER = (
    "view.help",
    "view.monitor",
    "view.decoding",
    "program.palette",
    "chat.new",
    "chat.jump",
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
        failed=_failed(conversation),
    )


def _failed(conversation: Conversation) -> bool:
    """Whether that is how its last reply ended."""
    messages = conversation.chat.messages
    return bool(messages) and messages[-1].state == "failed"


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


def greeting(keymap: Mapping[str, str], found: str, *, attached: bool) -> tuple[str, ...]:
    """What stands in a chat where nothing has been said: what was found here, and where to look."""
    ids = ("help", "monitor", "decoding", "quantization")
    help, monitor, decoding, quantization = (key_name(keys_of(f"view.{id}", keymap)) for id in ids)
    palette, model = (key_name(keys_of(id, keymap)) for id in ("program.palette", "model.pick"))
    other = "" if attached else f"; {model} takes another model"  # an engine elsewhere keeps its own
    return (
        *filter(None, (found,)),
        f"{help} has the keys, {palette} every command. @ and a file's name sends the file along.",
        f"{monitor} shows the engine at work, {decoding} how replies are drawn, {quantization} how the "
        f"weights are kept{other}. `minichat tour` leads through it.",
    )


def facts(shot: Snapshot) -> str:
    """What runs, in what form, and where."""
    form = shot.dtype if shot.quantization == "none" else shot.quantization
    return f"{shot.model}  {form}  {shot.device}"


def work(running: int) -> str:
    """What the engine does for this screen."""
    if running < 2:
        return "a reply runs" if running else "ready"
    return f"{running} replies run"


def footer(active: Conversation, focused: Widget | None, keymap: Mapping[str, str]) -> tuple[Key, ...]:
    """The keys that matter most: of the place with the focus, of the reply, and everywhere."""
    nodes = focused.ancestors_with_self if focused is not None else []
    here = next((node.HINTS for node in nodes if isinstance(node, Hinting)), ())
    commands = {command.id: command for command in COMMANDS}
    stop = ("reply.stop",) if not here else ()  # elsewhere Esc leads back to the prompt first
    urgent = stop if active.streaming else ("reply.retry",) if _failed(active) else ()
    wanted = [commands[id] for id in (*urgent, *_FOOTER)]
    everywhere = ((key_name(keys_of(each.id, keymap)), each.footer, each.action) for each in wanted)
    return (*(_hint(key, label, keymap) for key, label in here), *everywhere)


def _hint(key: str, label: str, keymap: Mapping[str, str]) -> Key:
    """Bindings by their ids, as the person has them; or keys in words. One that is alone can be clicked."""
    ids, usual = key.split(), {each.id: each.keys for each in bound()}
    if not usual.keys() >= set(ids):
        return key, label, ""
    pressed = keymap.get(ids[0], usual[ids[0]][0]).split(",")[0]
    return names_of(ids, keymap), label, f"press({pressed!r})" if len(ids) == 1 else ""
