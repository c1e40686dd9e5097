"""The text of the bars around the chats."""

from collections.abc import Sequence

from textual.dom import DOMNode
from textual.widget import Widget

from engine.api.snapshot import Snapshot
from minichat.features.feature import Context, ScreenCommand
from minichat.models.welcome import is_dry
from minichat.session.conversation import Conversation
from minichat.session.decoding import strategy
from minichat.shell.keys import Keys
from minichat.ui.composing import Checked
from minichat.ui.dialogs.dialog import Dialog
from minichat.ui.panes.keybar import ChangingHints, Hinting, Hints, Key
from minichat.ui.panes.tabs import Tab, titled
from minichat.ui.transcript.glyphs import one_line
from minichat.ui.transcript.greeting import Greeting

_FOOTER = ("View", "Program", "Chats")  # command groups in the key bar, in this order


def tab(conversation: Conversation, colors: str, *, active: bool, shown: bool, pinned: bool) -> Tab:
    chat = conversation.chat
    return Tab(
        letter=f" {chat.letter.upper()} ",
        title=titled(chat.title),
        colors=colors,
        active=active,
        shown=shown,
        running=conversation.streaming,
        unread=conversation.unread,
        failed=_failed(conversation),
        pinned=pinned,
    )


def _failed(conversation: Conversation) -> bool:
    """Whether its last reply failed."""
    messages = conversation.chat.messages
    return bool(messages) and messages[-1].state == "failed"


def _retriable(context: Context) -> bool:
    """Whether the last reply failed in a way that a retry may fix now."""
    messages = context.chats.active.chat.messages
    return bool(messages) and messages[-1].retriable and not context.lifecycle.refusal


def keys_of_replies(context: Context, conversation: Conversation) -> tuple[str, str]:
    """The key that shows reasoning, and how a failed reply offers a retry, if that is possible now. Both keys
    act on the active chat only.
    """
    if conversation is not context.chats.active:
        return "", ""
    retries = "" if context.lifecycle.refusal else f"{context.keys.name('reply.retry')} to retry"
    return context.keys.name("prompt.send"), retries


def recipient(context: Context, to: Sequence[Conversation]) -> tuple[str, bool]:
    """Where the message goes, and how the reply will be sampled; and whether it does not simply go to the
    active chat.
    """
    active = context.chats.active
    if active.editing is not None:
        return "edit and resend", True
    if len(to) > 1:
        return f"to all {len(to)} panes: {' '.join(each.chat.letter.upper() for each in to)}", True
    chat, new = active.chat, active.services.defaults
    sampled = strategy(chat.params, chat.adapter, new=new)
    read = bool(chat.system) and (not context.lifecycle.alive or context.program.backend.has_template)
    parts = (chat.letter.upper(), sampled, "system prompt" if read else "")
    return "  ".join(filter(None, parts)), False


def hint(active: Conversation, keys: Keys, checked: Checked, *, completes: bool) -> str:
    """What is wrong with the message, or its length; and what Enter does.

    `completes`: the list of files is open, which takes Enter and Esc.
    """
    if checked.faulty:
        return one_line(str(checked))
    actions = f"{keys.name('prompt.send')} send  {keys.name('prompt.newline')} newline"
    if completes:
        actions = "Enter complete"
    elif active.editing is not None:
        actions = f"{keys.name('reply.stop')} cancel"
    return "  ".join(filter(None, (str(checked), actions)))


def greeting(context: Context, found: str, tries: tuple[str, ...]) -> Greeting:
    """The greeting of an empty chat: what was found and runs now, messages to try, where to look."""
    keys, attached = context.keys, context.program.backend.elsewhere
    found = found if context.lifecycle.alive else ""
    help, palette, model = map(keys.name, ("view.help", "program.palette", "model.pick"))
    shown = ", ".join(f"{keys.name(each.id)} {each.greeting}" for each in context.commands if each.greeting)
    other = "" if attached else f"; {model} changes the model"  # a remote engine cannot
    try_one = f"Try one: click it, or press Up, then {keys.name('prompt.send')}." if tries else ""
    return Greeting(
        above=tuple(filter(None, (found, try_one))),
        tries=tries,
        below=(
            f"{help} lists the keys, {palette} all commands. Type @ and a name to attach a file.",
            f"{shown}{other}. Take the tour: {palette}, then Tour the engine.",
        ),
    )


def facts(shot: Snapshot) -> str:
    """The model, its dtype or quantization, and the device."""
    if is_dry(shot):
        return f"{shot.model}  dry run, no weights"
    form = shot.dtype if shot.quantization == "none" else shot.quantization
    return f"{shot.model}  {form}  {shot.device}"


def work(running: int, shot: Snapshot | None) -> str:
    """How many of this screen's chats get replies. Not "running": a request may still be waiting.

    All requests wait while the weights change, perhaps at the wish of another screen.
    """
    if shot is not None and (change := shot.change) is not None and not change.over:
        return f"reverting to {shot.quantization}" if change.error else f"converting to {change.scheme}"
    return f"{running} replying" if running else "ready"


def footer(
    context: Context, focused: Widget | None, dialogs: Sequence[object], *, covered: bool
) -> tuple[Key, ...]:
    """The keys for the bar: those of the focused widget, those of the reply, then global ones.

    `dialogs`: those over the screen, which have their own keys. `covered`: the monitor hides the chat.
    """
    footers = [each for each in context.commands if each.footer]
    everywhere = _keys(context, [each for group in _FOOTER for each in footers if each.group == group])
    if dialogs:
        return everywhere if isinstance(dialogs[-1], Dialog) and dialogs[-1].runs_commands else ()
    active, keys, drawer = context.chats.active, context.keys, context.panels.drawer_open
    opened = any(each.opened() for each in context.leaving)  # Esc closes it before the drawer
    nodes = focused.ancestors_with_self if focused is not None else []
    here = next(filter(None, map(_hints, nodes)), ())
    leaves = any(key == "Esc" for key, _ in here)  # Esc goes back to the chat first
    back = "close" if opened or drawer else "chat" if covered else ""
    if active.editing is not None:
        back = "cancel"
    elif here and not (back or active.streaming):
        back = "back"
    closes = [Key(keys.name("reply.stop"), back, command="reply.stop")] if back and not leaves else []
    if closes and covered and not drawer:
        closes.append(Key(keys.name("view.to_monitor"), "panes", command="view.to_monitor"))
    stop = () if leaves or back else ("reply.stop",)
    urgent = stop if active.streaming else ("reply.retry",) if _retriable(context) else ()
    replies = _keys(context, [each for each in footers if each.id in urgent])
    local = (*(_hint(key, label, keys) for key, label in here), *closes, *replies)
    return (*(key._replace(here=True) for key in local), *everywhere)


def _keys(context: Context, commands: Sequence[ScreenCommand]) -> tuple[Key, ...]:
    return tuple(Key(context.keys.name(each.id), each.footer, command=each.id) for each in commands)


def _hints(node: DOMNode) -> Hints:
    if isinstance(node, ChangingHints):
        return node.hints
    return node.HINTS if isinstance(node, Hinting) else ()


def _hint(key: str, label: str, keys: Keys) -> Key:
    """Binding ids with the user's keys, or literal keys. A single one can be clicked."""
    ids = key.split()
    if not all(id in keys for id in ids):
        return Key(key, label)
    return Key(keys.names(ids), label, pressed=keys.of(ids[0])[0] if len(ids) == 1 else "")
